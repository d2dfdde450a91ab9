// Copying rows between places in memory.
#pragma once

#include <cstddef>
#include <cstring>

namespace diskgnn {

// Asks for the first cache lines of a row that is copied soon; the hardware fetches the rest by itself.
inline void prefetch_row(const std::byte* row, std::size_t row_bytes) {
  __builtin_prefetch(row);
  if (row_bytes > 64) __builtin_prefetch(row + 64);
}

inline void copy_row(std::byte* to, const std::byte* from, std::size_t row_bytes) { std::memcpy(to, from, row_bytes); }

}  // namespace diskgnn
