#include "sampling/neighbor_sampler.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "sampling/edge_choice.h"
#include "sampling/relation_turn.h"

namespace diskgnn {
namespace {

template <typename Key>
void require_nodes(std::span<const Key> neighbors, std::int64_t num_nodes) {
  for (const Key node : neighbors) {
    if (node < 0 || node >= num_nodes) throw_no_source(node, num_nodes);
  }
}

}  // namespace

template <typename Id, bool kTrees>
SampledMinibatch<Id> sample_minibatch(const TypedTopology& topology, const DrawRequest& request) {
  using Key = typename NodeKeys<Id, kTrees>::Key;
  const std::size_t num_types = topology.num_nodes.size(), num_relations = topology.relations.size();
  if (request.fanouts.size() % num_relations != 0) throw std::invalid_argument("fanouts: expected one per edge type");
  Scratch<Key>& scratch = scratch_of_this_thread<Key>();
  scratch.tables.resize(num_types);
  scratch.nodes.resize(num_types);
  for (PageArray<Key>& nodes : scratch.nodes) nodes.clear();
  insert_seeds<Id, kTrees>(request, topology.num_nodes, scratch.nodes);
  for (std::size_t type = 0; type < num_types; ++type) {
    scratch.tables[type].restart(scratch.nodes[type]);
  }
  const std::vector<std::int64_t> times = tree_times(request);
  std::vector<SampledLayer> layers;
  std::vector<std::vector<std::size_t>> counts;  // of nodes known before each layer
  for (std::size_t layer = 0; layer < request.fanouts.size() / num_relations; ++layer) {
    counts.emplace_back();
    for (const PageArray<Key>& nodes : scratch.nodes) counts.back().push_back(nodes.size());
    layers.emplace_back(num_relations);
    for (std::size_t number = 0; number < num_relations; ++number) {
      const Relation& relation = topology.relations[number];
      const auto source = static_cast<std::size_t>(relation.source);
      const auto destination = static_cast<std::size_t>(relation.destination);
      const std::size_t count = counts.back()[destination];
      const std::size_t first = request.expand_once && layer > 0 ? counts[layer - 1][destination] : 0;
      SampledBlock& block = layers.back()[number];
      if (request.fanouts[layer * num_relations + number] == 0) {
        block.indptr.assign(count + 1, 0);
        continue;
      }
      block.indptr.reserve(count + 1);
      block.indptr.assign(first + 1, 0);
      const bool has_times = !relation.times.empty() || !topology.node_times[source].empty();
      const bool scans = scans_lists(request, has_times, !relation.weights.empty());
      const ExcludedEdges* excluded =
          request.excluded.empty() || request.excluded[number].empty() ? nullptr : &request.excluded[number];
      std::visit(
          [&]<typename Index>(std::span<const Index>) {
            Turn<Id, kTrees, Index> turn(topology, request, number, layer, first, count, scratch, block);
            if (scans || excluded != nullptr) {
              turn.choose(topology, scans, excluded, times);
            } else if (request.key.slice_start) {
              turn.draw_slices();
            } else {
              turn.draw_independently();
            }
          },
          relation.indices);
      const std::int64_t num_sources = topology.num_nodes[source];
      require_nodes<Key>(scratch.neighbors, num_sources);
      if constexpr (kTrees) {
        enter_trees(block.indptr, scratch.nodes[destination], topology.num_nodes[destination], num_sources,
                    scratch.neighbors);
      }
      block.indices.resize(scratch.neighbors.size());
      scratch.tables[source].insert_all(scratch.neighbors, scratch.nodes[source], block.indices);
    }
  }
  // Scratch keeps its memory: the minibatch gets copies of just the size.
  std::vector<PageArray<Key>> nodes;
  for (const PageArray<Key>& of_type : scratch.nodes) nodes.emplace_back(of_type.begin(), of_type.end());
  return finished_minibatch<Id, kTrees>(std::move(nodes), std::move(layers), counts, topology.num_nodes);
}

template SampledMinibatch<std::int32_t> sample_minibatch<std::int32_t, false>(const TypedTopology&, const DrawRequest&);
template SampledMinibatch<std::int32_t> sample_minibatch<std::int32_t, true>(const TypedTopology&, const DrawRequest&);
template SampledMinibatch<std::int64_t> sample_minibatch<std::int64_t, false>(const TypedTopology&, const DrawRequest&);
template SampledMinibatch<std::int64_t> sample_minibatch<std::int64_t, true>(const TypedTopology&, const DrawRequest&);

}  // namespace diskgnn
