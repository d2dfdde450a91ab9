// Rows of a file by number, at random: each page that holds a part of a wanted row is read once per call, many
// requests in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/direct_file.h"
#include "storage/page_memory.h"
#include "storage/read_engine.h"

namespace diskgnn {

struct RowFile {
  std::string path;
  std::uint64_t data_offset;  // row i starts at data_offset + i * row_bytes
  std::uint64_t row_bytes;
  std::int64_t num_rows;
};

struct RowRequest {
  std::int64_t row;
  std::int32_t place;  // becomes row `place` of the destination
};

struct ReadCounts {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;  // of whole pages
};

// Used by one thread at a time. Memory: the buffers of all requests in flight, 8 MiB unless rows are larger than 32
// KiB.
class RowReader {
 public:
  // Throws std::system_error when the file cannot be opened, std::invalid_argument when it is too short.
  RowReader(const RowFile& file, EngineKind kind);

  // Reads the rows of `requests`, which it sorts, in any alignment. Throws std::out_of_range for a row that the file
  // does not have, std::system_error when a read fails: then the reader cannot be used again.
  ReadCounts read(std::vector<RowRequest>& requests, std::byte* destination);

  std::uint64_t row_bytes() const { return rows_.row_bytes; }
  std::int64_t num_rows() const { return rows_.num_rows; }
  const char* engine() const { return engine_->name(); }

 private:
  struct Flight {  // one request in flight: the rows of requests[first, last)
    std::uint64_t offset;
    std::size_t first, last;
  };

  Flight next_flight(const std::vector<RowRequest>& requests, std::size_t first, std::uint64_t& end) const;
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
