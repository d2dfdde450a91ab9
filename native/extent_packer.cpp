#include "extent_packer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string>
#include <system_error>

#include "buffer_pool.h"
#include "crc32c.h"
#include "direct_file.h"
#include "parallel.h"
#include "row_copy.h"

namespace diskgnn {
namespace {

constexpr std::size_t kWriteBytes = 4 << 20;
constexpr std::size_t kPrefetchDistance = 8;
constexpr unsigned kWritersPerThread = 2;  // while one waits for the disk the other copies
constexpr std::ptrdiff_t kFirstStretchNodes = 4096;

void write_all(int descriptor, std::span<const std::byte> data, std::int64_t offset) {
  std::size_t done = 0;
  while (done < data.size()) {
    const ssize_t count =
        pwrite(descriptor, data.data() + done, data.size() - done, offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "writing rows");
    done += static_cast<std::size_t>(count);
  }
}

void write_fully(int descriptor, std::span<const std::byte> data, std::int64_t offset) {
  write_all(descriptor, data, offset);
  // Start the write-back now: left alone, dirty pages pile up until the memory limit stalls everybody.
  sync_file_range(descriptor, offset, static_cast<std::int64_t>(data.size()), SYNC_FILE_RANGE_WRITE);
}

// The same file again, past the page cache: copying into it costs more than the disk does. Where the file system has
// no O_DIRECT, everything goes through the cache.
class DirectDescriptor {
 public:
  explicit DirectDescriptor(int descriptor)
      : descriptor_(open(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC)) {}
  ~DirectDescriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  DirectDescriptor(const DirectDescriptor&) = delete;
  DirectDescriptor& operator=(const DirectDescriptor&) = delete;
  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  const int descriptor_;
};

// Whole pages directly, the ragged ends through the page cache: their pages are shared with a header or with the rows
// of another partition. `data[i]` is aligned in memory as `offset + i` is in the file.
void write_rows(int descriptor, const DirectDescriptor& direct, std::span<const std::byte> data, std::int64_t offset) {
  constexpr auto kPage = static_cast<std::int64_t>(kDirectAlignment);
  const std::int64_t end = offset + static_cast<std::int64_t>(data.size());
  const std::int64_t first = (offset + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (!direct || first >= last) return write_fully(descriptor, data, offset);
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return data.subspan(static_cast<std::size_t>(from - offset), static_cast<std::size_t>(to - from));
  };
  if (offset < first) write_fully(descriptor, part(offset, first), offset);
  write_fully(direct.get(), part(first, last), first);
  if (last < end) write_fully(descriptor, part(last, end), last);
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
  const DirectDescriptor direct(extents.descriptor);
  run_on_threads(num_threads * kWritersPerThread, [&] {
    const PageMemory memory(rows_per_write * row_bytes + kDirectAlignment);
    for (std::size_t t = next++; t < extents.offsets.size(); t = next++) {
      const Node* const begin = extents.nodes.data() + extents.cursors[t];
      const Node* const end = extents.nodes.data() + extents.bounds[t + 1];
      const Node* const stop = find_run_end(begin, end, static_cast<Node>(last_node));
      for (const Node* run = begin; run < stop;) {
        const auto count = std::min(rows_per_write, static_cast<std::size_t>(stop - run));
        const std::int64_t offset = extents.offsets[t] + ((run - extents.nodes.data()) - extents.bounds[t]) *
                                                             static_cast<std::int64_t>(row_bytes);
        std::byte* const buffer = memory.bytes().data() + static_cast<std::size_t>(offset) % kDirectAlignment;
        for (std::size_t i = 0; i < count; ++i) {
          const auto row_of = [&](std::size_t k) {
            return partition.data() +
                   static_cast<std::size_t>(run[static_cast<std::ptrdiff_t>(k)] - first_node) * row_bytes;
          };
          if (i + kPrefetchDistance < count) prefetch_row(row_of(i + kPrefetchDistance), row_bytes);
          copy_row(buffer + i * row_bytes, row_of(i), row_bytes);
        }
        const std::span<const std::byte> rows(buffer, count * row_bytes);
        write_rows(extents.descriptor, direct, rows, offset);
        extents.checksums[t] = crc32c(rows, extents.checksums[t]);
        run += static_cast<std::ptrdiff_t>(count);
      }
      extents.cursors[t] = stop - extents.nodes.data();
    }
  });
  posix_fadvise(extents.descriptor, 0, 0, POSIX_FADV_DONTNEED);
}

void scatter_rows(int descriptor, std::int64_t offset, std::span<const std::int64_t> places,
                  std::span<const std::int64_t> sources, std::span<const std::byte> partition, std::size_t row_bytes,
                  unsigned num_threads) {
  const std::size_t rows_per_task = std::max<std::size_t>(1, kWriteBytes / row_bytes);
  const auto row_of = [&](std::size_t i) {
    return partition.data() + static_cast<std::size_t>(sources[i]) * row_bytes;
  };
  std::atomic<std::size_t> next{0};
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
        write_all(descriptor, std::span(buffer).first((end - run) * row_bytes),
                  offset + places[run] * static_cast<std::int64_t>(row_bytes));
      }
    }
  });
  sync_file_range(descriptor, 0, 0, SYNC_FILE_RANGE_WRITE);
}

template void pack_partition(const ExtentRows<std::int32_t>&, std::span<const std::byte>, std::int64_t, std::int64_t,
                             std::size_t, unsigned);
template void pack_partition(const ExtentRows<std::int64_t>&, std::span<const std::byte>, std::int64_t, std::int64_t,
                             std::size_t, unsigned);

}  // namespace diskgnn
