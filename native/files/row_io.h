// Rows of a file by number, through the page cache. All pages are asked for before the first row is waited for, so that
// the disk works on many at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Row i lies at i * row_bytes; `destination` and `source` have the rows one after the other. Rows that ascend share the
// pages that they lie in. A read that fails is made again (read_attempts.h). Both throw std::system_error, also at the
// end of the file: `write_rows` a WriteFailed.
void read_rows(int descriptor, std::uint64_t row_bytes, std::span<const std::int64_t> rows, std::byte* destination);
void write_rows(int descriptor, std::uint64_t row_bytes, std::span<const std::int64_t> rows, const std::byte* source);

}  // namespace diskgnn
