#include "extent_packer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <vector>

#include "crc32c.h"
#include "parallel.h"
#include "row_copy.h"

namespace diskgnn {
namespace {

constexpr std::size_t kWriteBytes = 4 << 20;
constexpr std::size_t kPrefetchDistance = 8;
constexpr std::ptrdiff_t kFirstStretchNodes = 4096;

void write_fully(int descriptor, std::span<const std::byte> data, std::int64_t offset) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t count =
        pwrite(descriptor, data.data() + done, data.size() - done, offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "writing rows of an extent");
    done += static_cast<std::size_t>(count);
  }
  // Start the write-back now: left alone, dirty pages pile up until the memory limit stalls everybody.
  sync_file_range(descriptor, offset, static_cast<std::int64_t>(data.size()), SYNC_FILE_RANGE_WRITE);
}

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

}  // namespace

template <typename Node>
void pack_partition(const ExtentRows<Node>& extents, std::span<const std::byte> partition, std::int64_t first_node,
                    std::int64_t last_node, std::size_t row_bytes, unsigned num_threads) {
  const std::size_t rows_per_write = std::max<std::size_t>(1, kWriteBytes / row_bytes);
  std::atomic<std::size_t> next{0};
  run_on_threads(num_threads, [&] {
    std::vector<std::byte> buffer(rows_per_write * row_bytes);
    for (std::size_t t = next++; t < extents.offsets.size(); t = next++) {
      const Node* const begin = extents.nodes.data() + extents.cursors[t];
      const Node* const end = extents.nodes.data() + extents.bounds[t + 1];
      const Node* const stop = find_run_end(begin, end, static_cast<Node>(last_node));
      for (const Node* run = begin; run < stop;) {
        const auto count = std::min(rows_per_write, static_cast<std::size_t>(stop - run));
        for (std::size_t i = 0; i < count; ++i) {
          const auto row_of = [&](std::size_t k) {
            return partition.data() +
                   static_cast<std::size_t>(run[static_cast<std::ptrdiff_t>(k)] - first_node) * row_bytes;
          };
          if (i + kPrefetchDistance < count) prefetch_row(row_of(i + kPrefetchDistance), row_bytes);
          copy_row(buffer.data() + i * row_bytes, row_of(i), row_bytes);
        }
        const std::span<const std::byte> rows(buffer.data(), count * row_bytes);
        const std::int64_t row = (run - extents.nodes.data()) - extents.bounds[t];
        write_fully(extents.descriptor, rows, extents.offsets[t] + row * static_cast<std::int64_t>(row_bytes));
        extents.checksums[t] = crc32c(rows, extents.checksums[t]);
        run += static_cast<std::ptrdiff_t>(count);
      }
      extents.cursors[t] = stop - extents.nodes.data();
    }
  });
  posix_fadvise(extents.descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

template void pack_partition(const ExtentRows<std::int32_t>&, std::span<const std::byte>, std::int64_t, std::int64_t,
                             std::size_t, unsigned);
template void pack_partition(const ExtentRows<std::int64_t>&, std::span<const std::byte>, std::int64_t, std::int64_t,
                             std::size_t, unsigned);

}  // namespace diskgnn
