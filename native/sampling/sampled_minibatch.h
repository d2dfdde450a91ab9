// What sampling makes: the blocks of a minibatch and its nodes, and how nodes of trees are known meanwhile.
//
// With times, each seed grows a tree of its own. Nodes of trees are known by one number, tree * N + node, where N is
// the number of nodes of the type: sampling trees is sampling in a graph that has a copy of each node for each seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "files/page_array.h"
#include "sampling/draw_request.h"

namespace diskgnn {

struct SampledBlock {
  PageArray<std::int32_t> indptr;     // [num_dst + 1]
  PageArray<std::int32_t> indices;    // local source numbers
  PageArray<std::int64_t> positions;  // of these edges in the CSC, if they are wanted
};

// The blocks of one layer, by edge type.
using SampledLayer = std::vector<SampledBlock>;

template <typename Id>
struct SampledMinibatch {
  std::vector<PageArray<Id>> input_nodes;      // by node type: the seeds first, then in order of first appearance
  std::vector<PageArray<std::int32_t>> trees;  // by node type: whose each of these is; empty without times
  std::vector<SampledLayer> layers;            // outermost first
  // [layers + 1, node types]: how many of the nodes are sources of layer l, and then how many are seeds.
  std::vector<std::int32_t> node_counts;
};

// How a minibatch knows its nodes: `Id`, or in trees tree * num_nodes + node.
template <typename Id, bool kTrees>
struct NodeKeys {
  using Key = std::conditional_t<kTrees, std::int64_t, Id>;

  static std::int64_t node_of(Key key, std::int64_t num_nodes) {
    if constexpr (kTrees) return key % num_nodes;
    return key;
  }
  static std::int64_t tree_of(Key key, std::int64_t num_nodes) {
    if constexpr (kTrees) return key / num_nodes;
    return 0;
  }
};

// Makes seeds the first of each type's `nodes`. Throws std::invalid_argument when one is out of range, or repeated and
// not in a tree of its own.
template <typename Id, bool kTrees>
void insert_seeds(const DrawRequest& request, std::span<const std::int64_t> num_nodes,
                  std::vector<PageArray<typename NodeKeys<Id, kTrees>::Key>>& nodes);

// The times of all seeds: what the trees may see. Throws std::invalid_argument where starts are not those of these
// seeds.
std::vector<SeedTime> tree_times(const DrawRequest& request);

// Nodes as ids, and whose trees they are in. `layers` and `counts`, of nodes known before each layer, are from the
// seeds outwards.
template <typename Id, bool kTrees>
SampledMinibatch<Id> finished_minibatch(std::vector<PageArray<typename NodeKeys<Id, kTrees>::Key>>&& nodes,
                                        std::vector<SampledLayer>&& layers,
                                        std::span<const std::vector<std::size_t>> counts,
                                        std::span<const std::int64_t> num_nodes);

// Puts drawn sources into the trees of their destinations.
void enter_trees(std::span<const std::int32_t> indptr, std::span<const std::int64_t> destinations,
                 std::int64_t num_destinations, std::int64_t num_sources, std::span<std::int64_t> sources);

[[noreturn]] void throw_too_many_edges();

}  // namespace diskgnn
