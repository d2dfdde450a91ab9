#include "loading/row_reader.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "files/crc32c.h"
#include "graph/radix_sort.h"

namespace diskgnn {
namespace {

// Deeper than any disk's queue needs to be full; one request never takes more than a buffer.
constexpr unsigned kMaxDepth = 256;
constexpr std::uint64_t kBufferBytes = 32 << 10;
constexpr std::uint64_t kAllBuffersBytes = 8 << 20;
constexpr unsigned kMinDepth = 8;

std::uint64_t align_down(std::uint64_t offset) { return offset / kDirectAlignment * kDirectAlignment; }
std::uint64_t align_up(std::uint64_t offset) { return align_down(offset + kDirectAlignment - 1); }

}  // namespace

RowReader::RowReader(const RowFile& file, EngineKind kind)
    : rows_(file),
      file_(file.path),
      // A row may start at the last byte of a page and end at the first of another. Where gaps are read along, requests
      // are longer.
      buffer_bytes_(
          std::max({kBufferBytes, 4 * align_up(file.most_gap_bytes), align_up(file.row_bytes) + kDirectAlignment})),
      depth_(static_cast<unsigned>(std::clamp<std::uint64_t>(kAllBuffersBytes / buffer_bytes_, kMinDepth, kMaxDepth))),
      flights_(depth_),
      memory_(buffer_bytes_ * depth_) {
  const auto rows_bytes = static_cast<std::uint64_t>(rows_.num_rows) * rows_.row_bytes;
  if (rows_.row_bytes == 0 || rows_.num_rows < 0 || rows_.data_offset > file_.size_bytes() ||
      file_.size_bytes() - rows_.data_offset < rows_bytes) {
    throw std::invalid_argument(file.path + " is too short for its rows");
  }
  if (!rows_.checksums.empty() && rows_.checksums.size() < align_up(file_.size_bytes()) / kDirectAlignment) {
    throw std::invalid_argument(file.path + " is longer than what its checksums are of");
  }
  engine_ = make_read_engine(kind, file_, depth_, memory_.bytes());
}

// Rows whose pages touch, or nearly so, share a request while they fit its buffer.
RowReader::Flight RowReader::next_flight(const std::vector<RowRequest>& requests, std::size_t first) const {
  const std::uint64_t offset = align_down(start_of(requests[first]));
  std::uint64_t end = start_of(requests[first]) + rows_.row_bytes;
  std::size_t last = first + 1;
  for (; last < requests.size(); ++last) {
    const std::uint64_t start = start_of(requests[last]);
    const std::uint64_t most_start = align_up(end) + rows_.most_gap_bytes;
    if (align_down(start) > most_start || align_up(start + rows_.row_bytes) - offset > buffer_bytes_) break;
    end = start + rows_.row_bytes;
  }
  return {offset, end, first, last};
}

// The pages that hold a part of a row.
void RowReader::check(const std::vector<RowRequest>& requests, const Flight& flight, const std::byte* pages) const {
  if (rows_.checksums.empty()) return;
  std::uint64_t page = flight.offset;
  for (std::size_t i = flight.first; i < flight.last; ++i) {
    const std::uint64_t start = start_of(requests[i]);
    const std::uint64_t row_end = std::min(align_up(start + rows_.row_bytes), file_.size_bytes());
    for (page = std::max(page, align_down(start)); page < row_end; page += kDirectAlignment) {
      const std::uint64_t bytes = std::min<std::uint64_t>(kDirectAlignment, row_end - page);
      if (crc32c({pages + (page - flight.offset), bytes}, 0) != rows_.checksums[page / kDirectAlignment]) {
        throw DamagedFile(file_.path() + " is damaged: between its bytes " + std::to_string(page) + " and " +
                          std::to_string(page + bytes) + " it is not what was written");
      }
    }
  }
}

ReadCounts RowReader::read(std::vector<RowRequest>& requests, const Receiver& receive) {
  if (failed_) throw std::logic_error("a read of this reader has failed before");
  for (const RowRequest& request : requests) {
    if (request.row < 0 || request.row >= rows_.num_rows) {
      throw std::out_of_range("row " + std::to_string(request.row) + " is not in [0, " +
                              std::to_string(rows_.num_rows) + ")");
    }
  }
  if (!std::ranges::is_sorted(requests, {}, &RowRequest::row)) {
    radix_sort(requests, scratch_, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows_.num_rows))),
               [](const RowRequest& request) { return static_cast<std::uint64_t>(request.row); });
  }
  failed_ = true;  // until all is well
  ReadCounts counts;
  const auto submit = [&](std::size_t first, std::uint64_t buffer) {
    const Flight flight = flights_[buffer] = next_flight(requests, first);
    const std::uint64_t bytes = align_up(flight.end) - flight.offset;
    // A page that is to be compared is read to its end, or to that of the file.
    const std::uint64_t wanted_end =
        rows_.checksums.empty() ? flight.end : std::min(align_up(flight.end), file_.size_bytes());
    engine_->submit(
        {flight.offset, memory_.bytes().subspan(buffer * buffer_bytes_, bytes), wanted_end - flight.offset, buffer});
    ++counts.requests;
    counts.bytes += bytes;
    return flight.last;
  };
  std::size_t next = 0;
  unsigned in_flight = 0;
  while (in_flight < depth_ && next < requests.size()) next = submit(next, in_flight++);
  while (in_flight > 0) {
    const std::uint64_t buffer = engine_->wait();
    const Flight flight = flights_[buffer];
    const std::byte* pages = memory_.bytes().data() + buffer * buffer_bytes_;
    check(requests, flight, pages);
    for (std::size_t i = flight.first; i < flight.last; ++i) {
      receive(requests[i].place, {pages + (start_of(requests[i]) - flight.offset), rows_.row_bytes});
    }
    if (next < requests.size()) {
      next = submit(next, buffer);
    } else {
      --in_flight;
    }
  }
  failed_ = false;
  return counts;
}

}  // namespace diskgnn
