#include "packing/next_uses.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchDistance = 64;

template <typename Node>
struct Input {
  Node node;
  std::int32_t position;
};

// The digits of a least-significant-digit radix sort: as few as have at most 2^9 values each, whose places the nearest
// cache holds.
class Digits {
 public:
  explicit Digits(std::uint64_t num_nodes)
      : count_(std::max(1, (static_cast<int>(std::bit_width(num_nodes - 1)) + kMaxBits - 1) / kMaxBits)),
        bits_((static_cast<int>(std::bit_width(num_nodes - 1)) + count_ - 1) / count_) {}
  int count() const { return count_; }
  std::size_t values() const { return std::size_t{1} << bits_; }
  template <typename Node>
  std::size_t of(Node node, int digit) const {
    return (static_cast<std::uint64_t>(node) >> (digit * bits_)) & (values() - 1);
  }

 private:
  static constexpr int kMaxBits = 9;
  int count_, bits_;
};

}  // namespace

// The first pass reads `nodes`, the last one writes the result, those between go back and
// forth between two arrays that are kept, as fresh memory is dear.
template <typename Node>
SortedNodes<Node> sort_nodes(std::span<const Node> nodes, std::uint64_t num_nodes) {
  thread_local std::vector<Input<Node>> from, to;
  const Digits digits(num_nodes);
  std::vector<std::int32_t> ends(static_cast<std::size_t>(digits.count()) * digits.values(), 0);
  const auto end_of = [&](Node node, int digit) -> std::int32_t& {
    return ends[static_cast<std::size_t>(digit) * digits.values() + digits.of(node, digit)];
  };
  for (const Node node : nodes) {
    for (int digit = 0; digit < digits.count(); ++digit) ++end_of(node, digit);
  }
  for (std::size_t i = 0, total = 0; i < ends.size(); ++i) {
    if (i % digits.values() == 0) total = 0;
    total += static_cast<std::size_t>(std::exchange(ends[i], static_cast<std::int32_t>(total)));
  }
  SortedNodes<Node> sorted{PageArray<Node>(nodes.size()), PageArray<std::int32_t>(nodes.size())};
  const int last = digits.count() - 1;
  const auto put = [&](Node node, std::int32_t position, int digit) {
    const auto place = static_cast<std::size_t>(end_of(node, digit)++);
    if (digit == last) {
      sorted.nodes[place] = node;
      sorted.order[place] = position;
    } else {
      to[place] = {node, position};
    }
  };
  from.resize(nodes.size());
  to.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) put(nodes[i], static_cast<std::int32_t>(i), 0);
  for (int digit = 1; digit <= last; ++digit) {
    from.swap(to);
    for (const auto [node, position] : from) put(node, position, digit);
  }
  return sorted;
}

template <typename Node>
void count_nodes(std::span<std::int32_t> counts, std::span<const Node> nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&counts[static_cast<std::size_t>(nodes[i + kPrefetchDistance])], 1);
    }
    ++counts[static_cast<std::size_t>(nodes[i])];
  }
}

template <typename Node>
void mark_nodes(std::span<std::uint8_t> flags, std::span<const Node> nodes) {
  for (const Node node : nodes) flags[static_cast<std::size_t>(node)] = 1;
}

template <typename Node>
PageArray<std::int32_t> exchange_next_uses(std::span<std::int32_t> next_use, std::span<const Node> nodes,
                                           Node first_node, std::int32_t batch) {
  PageArray<std::int32_t> before(nodes.size());
  const auto of = [&](std::size_t i) -> std::int32_t& {
    return next_use[static_cast<std::size_t>(nodes[i] - first_node)];
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) __builtin_prefetch(&of(i + kPrefetchDistance), 1);
    std::int32_t& use = of(i);
    before[i] = use;
    use = use < 0 ? use : batch;
  }
  return before;
}

std::vector<UseCount> count_next_uses(std::span<const std::int32_t> next_uses, std::int32_t num_batches) {
  std::vector<std::int32_t> rows_of_use(2 * static_cast<std::size_t>(num_batches) + 1, 0);  // the first: of no use
  for (const std::int32_t use : next_uses) ++rows_of_use[static_cast<std::size_t>(use + 1)];
  std::vector<UseCount> counts;
  for (std::size_t i = 1; i < rows_of_use.size(); ++i) {
    if (rows_of_use[i] != 0) counts.push_back({static_cast<std::int32_t>(i - 1), rows_of_use[i]});
  }
  return counts;
}

template SortedNodes<std::int32_t> sort_nodes(std::span<const std::int32_t>, std::uint64_t);
template SortedNodes<std::int64_t> sort_nodes(std::span<const std::int64_t>, std::uint64_t);
template void count_nodes(std::span<std::int32_t>, std::span<const std::int32_t>);
template void count_nodes(std::span<std::int32_t>, std::span<const std::int64_t>);
template void mark_nodes(std::span<std::uint8_t>, std::span<const std::int32_t>);
template void mark_nodes(std::span<std::uint8_t>, std::span<const std::int64_t>);
template PageArray<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int32_t>,
                                                    std::int32_t, std::int32_t);
template PageArray<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int64_t>,
                                                    std::int64_t, std::int32_t);

}  // namespace diskgnn
