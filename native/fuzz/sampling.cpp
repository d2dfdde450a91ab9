// Sampling in memory from topology that a stranger made: refused, or every block is one, and every edge in it is an
// edge of the graph.
#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

#include "files/block_check.h"
#include "fuzz/hostile_graph.h"
#include "sampling/neighbor_sampler.h"

namespace diskgnn {
namespace {

template <typename Id, bool kTrees>
void check(const HostileGraph& graph, const DrawRequest& request, const SampledMinibatch<Id>& found) {
  const std::size_t num_types = graph.num_nodes.size(), num_layers = found.layers.size();
  for (std::size_t type = 0; type < num_types; ++type) {
    const auto& nodes = found.input_nodes[type];
    std::set<std::pair<std::int64_t, std::int64_t>> distinct;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      must(nodes[i] >= 0 && nodes[i] < graph.num_nodes[type]);
      distinct.emplace(kTrees ? found.trees[type][i] : 0, nodes[i]);
    }
    must(distinct.size() == nodes.size());
    must(static_cast<std::size_t>(found.node_counts[type]) == nodes.size());
  }
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    for (std::size_t number = 0; number < graph.relations.size(); ++number) {
      const HostileRelation& relation = graph.relations[number];
      const SampledBlock& block = found.layers[layer][number];
      const auto source = static_cast<std::size_t>(relation.source);
      const auto destination = static_cast<std::size_t>(relation.destination);
      const std::int32_t num_src = found.node_counts[layer * num_types + source];
      must(block_fault(block.indptr, block.indices, num_src) == nullptr);
      must(static_cast<std::int32_t>(block.indptr.size()) - 1 ==
           found.node_counts[(layer + 1) * num_types + destination]);
      const std::int32_t fanout = request.fanouts[(num_layers - 1 - layer) * graph.relations.size() + number];
      for (std::size_t i = 0; i + 1 < block.indptr.size(); ++i) {
        must(fanout < 0 || block.indptr[i + 1] - block.indptr[i] <= fanout);
        const auto node = static_cast<std::size_t>(found.input_nodes[destination][i]);
        for (std::int32_t e = block.indptr[i]; e < block.indptr[i + 1]; ++e) {
          const std::int64_t neighbor =
              found.input_nodes[source][static_cast<std::size_t>(block.indices[static_cast<std::size_t>(e)])];
          if (request.positions.empty()) continue;
          const std::int64_t position = block.positions[static_cast<std::size_t>(e)];
          must(position >= relation.indptr[node] && position < relation.indptr[node + 1]);
          must(relation.index(static_cast<std::size_t>(position)) == neighbor);
        }
      }
    }
  }
}

}  // namespace

void execute(Input& input) {
  const HostileGraph graph = take_graph(input);
  const DrawRequest request = take_request(input, graph);
  sample_hostile(graph, request, [&]<typename Id, bool kTrees> {
    check<Id, kTrees>(graph, request, sample_minibatch<Id, kTrees>(graph.topology(), request));
  });
}

}  // namespace diskgnn
