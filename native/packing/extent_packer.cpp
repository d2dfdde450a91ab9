#include "packing/extent_packer.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "files/crc32c.h"
#include "files/parallel.h"
#include "files/row_copy.h"

namespace diskgnn {
namespace {

constexpr std::size_t kWriteBytes = 4 << 20;
constexpr std::ptrdiff_t kPrefetchDistance = 8;
constexpr std::ptrdiff_t kFirstStretchNodes = 4096;
constexpr std::array<std::byte, kDirectAlignment> kZeros{};

// The first of the ascending nodes [begin, end) that is not below `limit`, near `begin`. `nodes` is a memory map that
// is not read ahead: each stretch is asked for as a whole before it is looked at, and nothing far behind the result.
template <typename Node>
const Node* find_run_end(const Node* begin, const Node* end, Node limit) {
  constexpr std::uintptr_t kPageBytes = 4096;
  std::ptrdiff_t step = kFirstStretchNodes;
  while (begin < end) {
    const Node* const stop = begin + std::min(step, end - begin);
    const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(begin) / kPageBytes * kPageBytes;
    madvise(reinterpret_cast<void*>(first), reinterpret_cast<std::uintptr_t>(stop) - first, MADV_WILLNEED);
    if (stop[-1] >= limit) return std::lower_bound(begin, stop, limit);
    begin = stop;
    step *= 2;
  }
  return end;
}

// Finds the rows of ascending nodes in a window. Throws std::out_of_range where it has none.
class RowFinder {
 public:
  RowFinder(const RowWindow& window, std::size_t row_bytes) : window_(window), row_bytes_(row_bytes) {}

  std::span<const std::byte> row(std::int64_t node) {
    const std::span<const std::int64_t> nodes = window_.run_nodes;
    while (run_ + 1 < nodes.size() && nodes[run_ + 1] <= node) ++run_;
    const auto place = static_cast<std::uint64_t>(window_.run_places[run_]) +
                       static_cast<std::uint64_t>(node - nodes[run_]) * row_bytes_;
    if (node < nodes[run_] || place > window_.bytes.size() - row_bytes_) {
      throw std::out_of_range("node " + std::to_string(node) + " is not in the window");
    }
    return window_.bytes.subspan(place, row_bytes_);
  }

 private:
  const RowWindow& window_;
  std::size_t row_bytes_;
  std::size_t run_ = 0;
};

}  // namespace

std::uint32_t start_extent(PageWriter& writer, std::shared_ptr<const OutputFile> file, std::int64_t offset,
                           std::span<const std::byte> header, std::size_t padding_bytes, std::span<std::byte> tail) {
  PageAppender appender(writer, std::move(file), offset, tail, 0);
  appender.append(header);
  const std::uint32_t checksum = appender.checksum();
  appender.append(std::span(kZeros).first(padding_bytes));
  appender.finish(true);
  return checksum;
}

template <typename Node>
void pack_window(PageWriter& writer, const ExtentRows<Node>& extents, const RowWindow& window, unsigned num_threads) {
  const auto limit = static_cast<Node>(window.last_node);
  std::atomic<std::size_t> next{0};
  run_on_threads(num_threads, [&] {
    for (std::size_t t = next++; t < extents.offsets.size(); t = next++) {
      const Node* const run = extents.nodes.data() + extents.cursors[t];
      const Node* const end = extents.nodes.data() + extents.bounds[t + 1];
      const Node* const stop = find_run_end(run, end, limit);
      if (run == stop) continue;
      PageAppender appender(writer, extents.file, extents.written_end(t),
                            extents.tails.subspan(t * kDirectAlignment, kDirectAlignment), extents.checksums[t]);
      RowFinder rows(window, extents.row_bytes), ahead(window, extents.row_bytes);
      for (const Node* node = run; node < stop; ++node) {
        if (stop - node > kPrefetchDistance) {
          prefetch_row(ahead.row(node[kPrefetchDistance]).data(), extents.row_bytes);
        }
        appender.append(rows.row(*node));
      }
      extents.checksums[t] = appender.checksum();
      if (stop == end) appender.append(std::span(kZeros).first(static_cast<std::size_t>(extents.padding_bytes[t])));
      appender.finish(false);
      extents.cursors[t] = stop - extents.nodes.data();
    }
  });
}

template <typename Node>
void flush_tails(PageWriter& writer, const ExtentRows<Node>& extents) {
  for (std::size_t t = 0; t < extents.offsets.size(); ++t) {
    const std::int64_t end = extents.written_end(t);
    // Without a row of these, the page is that of what comes before them, which was written with it.
    if (extents.cursors[t] == extents.bounds[t] || end % kDirectAlignment == 0) continue;
    PageAppender(writer, extents.file, end, extents.tails.subspan(t * kDirectAlignment, kDirectAlignment), 0)
        .finish(true);
  }
}

std::uint32_t scatter_rows(int descriptor, std::int64_t offset, std::int64_t num_rows,
                           std::span<const std::int64_t> places, std::span<const std::int64_t> sources,
                           std::span<const std::byte> window, std::size_t row_bytes, unsigned num_threads) {
  const std::size_t rows_per_task = std::max<std::size_t>(1, kWriteBytes / row_bytes);
  const auto row_of = [&](std::size_t i) { return window.data() + sources[i]; };
  std::atomic<std::size_t> next{0};
  std::atomic<std::uint32_t> remainder{0};
  run_on_threads(num_threads, [&] {
    std::vector<std::byte> buffer(rows_per_task * row_bytes);
    for (std::size_t first = next.fetch_add(rows_per_task); first < places.size();
         first = next.fetch_add(rows_per_task)) {
      const std::size_t last = std::min(first + rows_per_task, places.size());
      for (std::size_t run = first, end = first; run < last; run = end) {
        for (; end < last && places[end] - places[run] == static_cast<std::int64_t>(end - run); ++end) {
          if (end + kPrefetchDistance < last) prefetch_row(row_of(end + kPrefetchDistance), row_bytes);
          copy_row(buffer.data() + (end - run) * row_bytes, row_of(end), row_bytes);
        }
        const std::span<const std::byte> rows = std::span(buffer).first((end - run) * row_bytes);
        write_all(descriptor, rows, offset + places[run] * static_cast<std::int64_t>(row_bytes));
        remainder ^= crc32c_part(rows, static_cast<std::uint64_t>(num_rows - places[end - 1] - 1) * row_bytes);
      }
    }
  });
  start_writing_out(descriptor, 0, 0);
  return remainder;
}

template void pack_window(PageWriter&, const ExtentRows<std::int32_t>&, const RowWindow&, unsigned);
template void pack_window(PageWriter&, const ExtentRows<std::int64_t>&, const RowWindow&, unsigned);
template void flush_tails(PageWriter&, const ExtentRows<std::int32_t>&);
template void flush_tails(PageWriter&, const ExtentRows<std::int64_t>&);

}  // namespace diskgnn
