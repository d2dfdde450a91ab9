// Where the parts of each extent of a file are: what <split>-index.npy and <split>-rows.npy say, checked once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "files/byte_source.h"

namespace diskgnn {

// One record of <split>-index.npy (diskgnn/formats/extents.py has the same fields in the same order).
struct ExtentRecord {
  std::int64_t offset;
  std::int64_t header_bytes;
  std::int64_t header_crc32c;
};
static_assert(sizeof(ExtentRecord) == 24);

// One record of <split>-rows.npy: the rows of one row set in one extent. Offsets count from the extent's start.
struct RowsRecord {
  std::int64_t rows_offset;
  std::int64_t num_rows;
  std::int64_t num_inputs;
  std::int64_t addresses_offset;
  std::int64_t num_admissions;
  std::int64_t admissions_offset;
  std::int64_t rows_crc32c;
};
static_assert(sizeof(RowsRecord) == 56);

// The T extents of a file, with the rows of K row sets in each. A stranger may have touched the index: nothing in one
// that was made leads outside of the file, of a header, or of a buffer of the sizes below.
class ExtentIndex {
 public:
  // `rows` are [T * K], `row_bytes` [K]; `stored_bytes` [K] is what a row takes in an extent. Throws
  // std::invalid_argument when they do not fit each other and the file.
  ExtentIndex(std::vector<ExtentRecord> extents, std::vector<RowsRecord> rows, std::vector<std::size_t> row_bytes,
              std::vector<std::size_t> stored_bytes, const ByteSource& file);

  std::size_t size() const { return extents_.size(); }
  const ExtentRecord& operator[](std::int64_t extent) const { return extents_[static_cast<std::size_t>(extent)]; }
  std::span<const RowsRecord> rows(std::int64_t extent) const {
    return std::span(rows_).subspan(static_cast<std::size_t>(extent) * row_bytes_.size(), row_bytes_.size());
  }

  // What the rows of one row set take in an extent.
  std::size_t stored_rows_bytes(std::int64_t extent, std::size_t row_set) const {
    return static_cast<std::size_t>(rows(extent)[row_set].num_rows) * stored_bytes_[row_set];
  }

  // Of an extent, with what fills its last page.
  std::int64_t extent_bytes(std::int64_t extent) const;

  // The extent that has this byte of the file.
  std::int64_t extent_at(std::uint64_t offset) const;

  // Where the rows of each row set are staged, from the start of the first, and behind the last one: [K + 1] bytes.
  std::vector<std::size_t> staging(std::int64_t extent) const;

  std::size_t most_header_bytes() const;
  std::size_t most_staged_bytes() const;

 private:
  bool is_sound(std::int64_t extent, std::int64_t most_bytes) const;

  std::vector<ExtentRecord> extents_;
  std::vector<RowsRecord> rows_;
  std::vector<std::size_t> row_bytes_;
  std::vector<std::size_t> stored_bytes_;
};

}  // namespace diskgnn
