#include "sampling/neighbor_sampler.h"

#include <algorithm>
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

// Whether nodes draw from an edge type what they drew in the layer before: coordinated draws are the same in all of
// them.
bool repeats_draws(const DrawRequest& request, std::size_t layer, std::size_t number, std::size_t num_relations) {
  if (layer == 0 || request.expand_once) return false;
  const std::int32_t fanout = request.fanouts[layer * num_relations + number];
  const bool is_same = request.fanouts[(layer - 1) * num_relations + number] == fanout;
  return is_same && (request.key.slice_start.has_value() || fanout < 0);
}

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
  const std::vector<SeedTime> times = tree_times(request);
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
      SampledBlock& block = layers.back()[number];
      if (request.fanouts[layer * num_relations + number] == 0) {
        block.indptr.assign(count + 1, 0);
        continue;
      }
      // Nodes that were known before the layer before draw again, and some of these draws are known, too.
      const SampledBlock* const known =
          !kTrees && repeats_draws(request, layer, number, num_relations) ? &layers[layer - 1][number] : nullptr;
      const std::size_t num_known = known == nullptr ? 0 : known->indices.size();
      const std::size_t first =
          known != nullptr || (request.expand_once && layer > 0) ? counts[layer - 1][destination] : 0;
      block.indptr.reserve(count + 1);
      if (known != nullptr) {
        block.indptr.assign(known->indptr.begin(), known->indptr.end());
        block.positions.assign(known->positions.begin(), known->positions.end());
      } else {
        block.indptr.assign(first + 1, 0);
      }
      const bool has_times = !relation.times.empty() || !topology.node_times[source].empty();
      const bool scans = scans_lists(request, has_times, !relation.weights.empty(), relation.by_time);
      const bool excludes = request.excludes(number);
      std::visit(
          [&]<typename Index>(std::span<const Index>) {
            Turn<Id, kTrees, Index> turn(topology, request, number, layer, first, count, scratch, block);
            if (scans || excludes) {
              turn.choose(topology, scans, excludes, times);
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
      block.indices.resize(num_known + scratch.neighbors.size());
      if (known != nullptr) std::copy(known->indices.begin(), known->indices.end(), block.indices.begin());
      scratch.tables[source].insert_all(scratch.neighbors, scratch.nodes[source],
                                        std::span(block.indices).subspan(num_known));
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
