// How sampled minibatches go to Python, whoever samples them.
#pragma once

#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "sampling/sampled_minibatch.h"

namespace diskgnn {

// By node type, of nodes that have times.
using NodeTimes = std::vector<std::optional<In<std::int64_t>>>;

template <typename T>
std::span<const T> span_or_empty(const std::optional<In<T>>& array) {
  return array ? span_of(*array) : std::span<const T>{};
}

// int32 where that is enough for all positions of an edge type.
inline nb::object positions_to_numpy(PageArray<std::int64_t>&& positions, std::int64_t num_edges) {
  if (num_edges > std::numeric_limits<std::int32_t>::max()) return nb::cast(to_numpy(std::move(positions)));
  return nb::cast(to_numpy(PageArray<std::int32_t>(positions.begin(), positions.end())));
}

// ([input nodes of each node type], [trees of each] or None, [[(indptr, indices, positions or None)]] outermost first,
// [layers + 1, node types] counts of nodes).
template <typename Id>
nb::tuple to_tuple(SampledMinibatch<Id>&& sampled, const std::vector<bool>& positions,
                   std::span<const std::int64_t> num_edges) {
  nb::list input_nodes, trees, layers;
  for (PageArray<Id>& nodes : sampled.input_nodes) input_nodes.append(to_numpy(std::move(nodes)));
  for (PageArray<std::int32_t>& of_type : sampled.trees) trees.append(to_numpy(std::move(of_type)));
  for (SampledLayer& layer : sampled.layers) {
    nb::list blocks;
    for (std::size_t number = 0; number < layer.size(); ++number) {
      SampledBlock& block = layer[number];
      nb::object where = nb::none();
      if (!positions.empty() && positions[number]) {
        where = positions_to_numpy(std::move(block.positions), num_edges[number]);
      }
      blocks.append(nb::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices)), where));
    }
    layers.append(blocks);
  }
  return nb::make_tuple(input_nodes, sampled.trees.empty() ? nb::none() : nb::object(trees), layers,
                        to_numpy(std::move(sampled.node_counts)));
}

}  // namespace diskgnn
