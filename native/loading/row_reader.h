// Rows of a file by number: each page that holds a part of a wanted row is read once per call, many requests in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "files/direct_file.h"
#include "files/page_memory.h"
#include "files/read_engine.h"

namespace diskgnn {

struct RowFile {
  std::string path;
  std::uint64_t data_offset;  // row i starts at data_offset + i * row_bytes
  std::uint64_t row_bytes;
  std::int64_t num_rows;
  std::span<const std::uint32_t> checksums{};  // of each kDirectAlignment bytes, to compare what is used; or none
  std::uint64_t most_gap_bytes = 0;            // between wanted pages, read along to save a request
};

// A file whose bytes do not have their checksums.
class DamagedFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RowRequest {
  std::int64_t row;
  std::int32_t place;  // what its receiver knows it by
};

struct ReadCounts {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;  // of whole pages, gaps included
};

// Used by one thread at a time. Memory: the buffers of all requests in flight, 8 MiB unless rows are larger than 32
// KiB.
class RowReader {
 public:
  // Takes the row at a place; the bytes are there until it returns.
  using Receiver = std::function<void(std::int32_t place, std::span<const std::byte> row)>;

  // Throws std::system_error when the file cannot be opened, std::invalid_argument when it is too short, or has more
  // bytes than there are checksums for.
  RowReader(const RowFile& file, EngineKind kind);

  // Reads the rows of `requests`, which it sorts by row, in any alignment; `receive` gets them as they arrive. Throws
  // std::out_of_range for a row that the file does not have, std::system_error when a read fails, DamagedFile: then the
  // reader cannot be used again.
  ReadCounts read(std::vector<RowRequest>& requests, const Receiver& receive);

  std::uint64_t row_bytes() const { return rows_.row_bytes; }
  std::int64_t num_rows() const { return rows_.num_rows; }
  const char* engine() const { return engine_->name(); }

 private:
  struct Flight {               // one request in flight: the rows of requests[first, last)
    std::uint64_t offset, end;  // of the first page, of the last row
    std::size_t first, last;
  };

  Flight next_flight(const std::vector<RowRequest>& requests, std::size_t first) const;
  void check(const std::vector<RowRequest>& requests, const Flight& flight, const std::byte* pages) const;
  std::uint64_t start_of(const RowRequest& request) const {
    return rows_.data_offset + static_cast<std::uint64_t>(request.row) * rows_.row_bytes;
  }

  RowFile rows_;
  DirectFile file_;
  std::uint64_t buffer_bytes_;
  unsigned depth_;
  std::vector<Flight> flights_;  // [depth]
  std::vector<RowRequest> scratch_;
  PageMemory memory_;
  std::unique_ptr<ReadEngine> engine_;  // after the buffers: it waits for what is in flight before they are freed
  bool failed_ = false;
};

}  // namespace diskgnn
