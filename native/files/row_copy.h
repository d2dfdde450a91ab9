// Copying rows between places in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace diskgnn {

inline constexpr std::size_t kCacheLineBytes = 64;

// Asks for the first cache lines of a row that is copied soon; the hardware fetches the rest by itself.
inline void prefetch_row(const std::byte* row, std::size_t row_bytes) {
  __builtin_prefetch(row);
  if (row_bytes > kCacheLineBytes) __builtin_prefetch(row + kCacheLineBytes);
}

// The same for up to 1 KiB: before a row of 8 lines the hardware has no time to notice what is going on.
inline void prefetch_lines(const std::byte* row, std::size_t row_bytes) {
  const std::size_t bytes = std::min<std::size_t>(row_bytes, 1024);
  for (std::size_t offset = 0; offset < bytes; offset += kCacheLineBytes) __builtin_prefetch(row + offset);
}

inline void copy_row(std::byte* to, const std::byte* from, std::size_t row_bytes) { std::memcpy(to, from, row_bytes); }

// Whether rows of this width, back to back, consist mostly of whole cache lines: then `stream_row` is the faster copy.
inline bool is_streamable(std::size_t row_bytes) { return row_bytes % kCacheLineBytes == 0 || row_bytes >= 1024; }

// Copies a row that nobody reads soon. Whole cache lines of the destination are written past the cache, which neither
// reads them first nor evicts others for them. Before another thread may look, the writer calls `finish_streaming`.
void stream_row(std::byte* to, const std::byte* from, std::size_t row_bytes);

void finish_streaming();

// Copies the rows that begin at these places of `source`, back to back. Throws std::out_of_range where none does.
void copy_rows_at(std::span<const std::byte> source, std::span<const std::int64_t> places, std::size_t row_bytes,
                  std::byte* to);

// Copies rows that lie back to back, row i to places[i] of `segments`, which count as if each had `segment_bytes` and
// the next one followed; nowhere if that is negative. Throws std::out_of_range, before anything is copied, where a row
// does not lie within one segment.
void copy_rows_to(std::span<const std::byte> rows, std::size_t row_bytes, std::span<const std::int64_t> places,
                  std::span<const std::span<std::byte>> segments, std::size_t segment_bytes);

}  // namespace diskgnn
