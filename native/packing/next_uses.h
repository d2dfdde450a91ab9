// What the sequence of a split says of each access: when its node is needed next. Nodes of a minibatch are sorted, so
// that every pass over a node-sized array goes through it from front to back.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "files/page_array.h"

namespace diskgnn {

template <typename Node>
struct SortedNodes {
  PageArray<Node> nodes;          // [U] ascending
  PageArray<std::int32_t> order;  // [U] nodes[i] was at order[i]
};

// Sorts what is in [0, num_nodes). Stable.
template <typename Node>
SortedNodes<Node> sort_nodes(std::span<const Node> nodes, std::uint64_t num_nodes);

// Adds 1 to the count of each node.
template <typename Node>
void count_nodes(std::span<std::int32_t> counts, std::span<const Node> nodes);

// Sets the flag of each node to 1.
template <typename Node>
void mark_nodes(std::span<std::uint8_t> flags, std::span<const Node> nodes);

// One step of the backward pass that finds next uses: returns what `next_use` said for `nodes` and then sets it to
// `batch` for them, but for nodes where it is negative (static rows: it stays). next_use[0] is that of `first_node`.
template <typename Node>
PageArray<std::int32_t> exchange_next_uses(std::span<std::int32_t> next_use, std::span<const Node> nodes,
                                           Node first_node, std::int32_t batch);

// How many of a minibatch's accesses have each next use, in [0, 2 * num_batches): ascending by use, none of no rows.
// Negative uses are left out.
struct UseCount {
  std::int32_t use;
  std::int32_t rows;
};
std::vector<UseCount> count_next_uses(std::span<const std::int32_t> next_uses, std::int32_t num_batches);

}  // namespace diskgnn
