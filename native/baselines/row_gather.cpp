#include "baselines/row_gather.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "files/parallel.h"
#include "files/row_copy.h"

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchDistance = 8;
// Nodes that a thread takes at a time: few enough that all threads end at about the same time.
constexpr std::size_t kTakenNodes = 256;

void check_slots(std::span<const std::int32_t> slots, std::span<const std::int32_t> admissions, std::size_t rows,
                 std::size_t capacity) {
  const auto fits = [](std::int32_t value, std::size_t end) {
    return value >= 0 && static_cast<std::size_t>(value) < end;
  };
  for (const std::int32_t slot : slots) {
    if (slot != -1 && !fits(slot, capacity)) throw std::out_of_range("a slot that the cache does not have");
  }
  for (std::size_t i = 0; i < admissions.size(); i += 2) {
    if (!fits(admissions[i], rows) || !fits(admissions[i + 1], capacity)) {
      throw std::out_of_range("an admission of a row or slot that is none");
    }
  }
}

}  // namespace

template <typename Node>
void gather_rows(std::span<const std::byte> source, std::uint64_t row_bytes, std::span<const Node> nodes,
                 std::byte* destination, unsigned threads) {
  const auto num_rows = static_cast<std::int64_t>(source.size() / row_bytes);
  for (const Node node : nodes) {
    if (node < 0 || node >= num_rows) throw std::out_of_range("node " + std::to_string(node) + " has no row");
  }
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    for (;;) {
      const std::size_t first = taken.fetch_add(kTakenNodes);
      const std::size_t last = std::min(first + kTakenNodes, nodes.size());
      for (std::size_t i = first; i < last; ++i) {
        if (i + kPrefetchDistance < last) {
          prefetch_row(source.data() + static_cast<std::size_t>(nodes[i + kPrefetchDistance]) * row_bytes, row_bytes);
        }
        copy_row(destination + i * row_bytes, source.data() + static_cast<std::size_t>(nodes[i]) * row_bytes,
                 row_bytes);
      }
      if (last == nodes.size()) return;
    }
  };
  run_on_threads(static_cast<unsigned>(std::clamp<std::size_t>(nodes.size() / kTakenNodes, 1, threads)), work);
}

template <typename Node>
ReadCounts gather_cached(RowReader& reader, std::span<const Node> nodes, std::span<const std::int32_t> slots,
                         std::span<const std::int32_t> admissions, std::span<std::byte> cache, std::byte* destination) {
  const std::size_t row_bytes = reader.row_bytes();
  check_slots(slots, admissions, nodes.size(), cache.size() / row_bytes);
  std::vector<RowRequest> missed;
  std::vector<std::int32_t> hits;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto position = static_cast<std::int32_t>(i);
    if (slots[i] < 0) {
      missed.push_back({static_cast<std::int64_t>(nodes[i]), position});
    } else {
      hits.push_back(position);
    }
  }
  const auto row_of_slot = [&](std::int32_t slot) { return cache.data() + static_cast<std::size_t>(slot) * row_bytes; };
  const auto row_of_position = [&](std::int32_t position) {
    return destination + static_cast<std::size_t>(position) * row_bytes;
  };
  ReadCounts counts;
  {
    const std::jthread copying([&] {  // joined at the end of the block, also when a read fails
      for (std::size_t i = 0; i < hits.size(); ++i) {
        if (i + kPrefetchDistance < hits.size()) {
          prefetch_row(row_of_slot(slots[static_cast<std::size_t>(hits[i + kPrefetchDistance])]), row_bytes);
        }
        copy_row(row_of_position(hits[i]), row_of_slot(slots[static_cast<std::size_t>(hits[i])]), row_bytes);
      }
    });
    counts = reader.read(missed, [&](std::int32_t position, std::span<const std::byte> row) {
      copy_row(row_of_position(position), row.data(), row_bytes);
    });
  }
  for (std::size_t i = 0; i < admissions.size(); i += 2) {
    copy_row(row_of_slot(admissions[i + 1]), row_of_position(admissions[i]), row_bytes);
  }
  return counts;
}

template void gather_rows(std::span<const std::byte>, std::uint64_t, std::span<const std::int32_t>, std::byte*,
                          unsigned);
template void gather_rows(std::span<const std::byte>, std::uint64_t, std::span<const std::int64_t>, std::byte*,
                          unsigned);
template ReadCounts gather_cached(RowReader&, std::span<const std::int32_t>, std::span<const std::int32_t>,
                                  std::span<const std::int32_t>, std::span<std::byte>, std::byte*);
template ReadCounts gather_cached(RowReader&, std::span<const std::int64_t>, std::span<const std::int32_t>,
                                  std::span<const std::int32_t>, std::span<std::byte>, std::byte*);

}  // namespace diskgnn
