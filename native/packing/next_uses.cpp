#include "packing/next_uses.h"

#include <bit>
#include <cstddef>

#include "graph/radix_sort.h"

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchDistance = 64;

template <typename Node>
struct Input {
  Node node;
  std::int32_t position;
};

}  // namespace

template <typename Node>
SortedNodes<Node> sort_nodes(std::span<const Node> nodes, std::uint64_t num_nodes) {
  thread_local std::vector<Input<Node>> inputs, scratch;  // kept, as fresh memory is dear
  inputs.resize(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) inputs[i] = {nodes[i], static_cast<std::int32_t>(i)};
  radix_sort(inputs, scratch, std::bit_width(num_nodes - 1),
             [](const Input<Node>& input) { return static_cast<std::uint64_t>(input.node); });
  SortedNodes<Node> sorted{std::vector<Node>(nodes.size()), std::vector<std::int32_t>(nodes.size())};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    sorted.nodes[i] = inputs[i].node;
    sorted.order[i] = inputs[i].position;
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
std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t> next_use, std::span<const Node> nodes,
                                             Node first_node, std::int32_t batch) {
  std::vector<std::int32_t> before(nodes.size());
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
template std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int32_t>,
                                                      std::int32_t, std::int32_t);
template std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int64_t>,
                                                      std::int64_t, std::int32_t);

}  // namespace diskgnn
