#include "sampling/sampled_minibatch.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "sampling/relabel_table.h"

namespace diskgnn {

void enter_trees(std::span<const std::int32_t> indptr, std::span<const std::int64_t> destinations,
                 std::int64_t num_destinations, std::int64_t num_sources, std::span<std::int64_t> sources) {
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    const std::int64_t first = destinations[i] / num_destinations * num_sources;
    for (std::int32_t e = indptr[i]; e < indptr[i + 1]; ++e) sources[static_cast<std::size_t>(e)] += first;
  }
}

template <typename Id, bool kTrees>
void insert_seeds(const DrawRequest& request, std::span<const std::int64_t> num_nodes,
                  std::vector<PageArray<typename NodeKeys<Id, kTrees>::Key>>& nodes) {
  using Key = typename NodeKeys<Id, kTrees>::Key;
  if (request.seeds.size() != num_nodes.size()) throw std::invalid_argument("seeds: expected some of each node type");
  std::int64_t tree = 0;
  for (std::size_t type = 0; type < num_nodes.size(); ++type) {
    const std::vector<std::int64_t>& seeds = request.seeds[type];
    if (kTrees && request.seed_times[type].size() != seeds.size()) {
      throw std::invalid_argument("seed_times: expected one per seed");
    }
    nodes[type].reserve(seeds.size());
    RelabelTable<Key> table(kTrees ? 0 : seeds.size());
    for (const std::int64_t seed : seeds) {
      if (seed < 0 || seed >= num_nodes[type]) {
        throw std::invalid_argument("seed " + std::to_string(seed) + " is not in [0, " +
                                    std::to_string(num_nodes[type]) + ")");
      }
      if constexpr (kTrees) {
        if (tree > (std::numeric_limits<Key>::max() - seed) / num_nodes[type]) {
          throw std::invalid_argument("trees times nodes exceed 2^63; use smaller batches");
        }
        nodes[type].push_back(tree++ * num_nodes[type] + seed);
      } else {
        const std::size_t before = nodes[type].size();
        table.insert(static_cast<Key>(seed), nodes[type]);
        if (nodes[type].size() == before) {
          throw std::invalid_argument("seed " + std::to_string(seed) + " is repeated");
        }
      }
    }
  }
}

std::vector<SeedTime> tree_times(const DrawRequest& request) {
  const auto& starts = request.seed_starts;
  bool fits = starts.empty() || starts.size() == request.seed_times.size();
  std::vector<SeedTime> times;
  for (std::size_t type = 0; fits && type < request.seed_times.size(); ++type) {
    const std::vector<std::int64_t>& of_type = request.seed_times[type];
    fits = starts.empty() || starts[type].size() == of_type.size();
    for (std::size_t i = 0; fits && i < of_type.size(); ++i) {
      times.push_back({of_type[i], starts.empty() ? std::numeric_limits<std::int64_t>::min() : starts[type][i]});
    }
  }
  if (!fits) throw std::invalid_argument("seed_starts: expected one for each of seed_times");
  return times;
}

template <typename Id, bool kTrees>
SampledMinibatch<Id> finished_minibatch(std::vector<PageArray<typename NodeKeys<Id, kTrees>::Key>>&& nodes,
                                        std::vector<SampledLayer>&& layers,
                                        std::span<const std::vector<std::size_t>> counts,
                                        std::span<const std::int64_t> num_nodes) {
  SampledMinibatch<Id> minibatch;
  for (const auto& of_type : nodes) minibatch.node_counts.push_back(static_cast<std::int32_t>(of_type.size()));
  for (std::size_t layer = counts.size(); layer-- > 0;) {
    for (const std::size_t count : counts[layer]) minibatch.node_counts.push_back(static_cast<std::int32_t>(count));
  }
  if constexpr (kTrees) {
    for (std::size_t type = 0; type < nodes.size(); ++type) {
      PageArray<Id> ids(nodes[type].size());
      PageArray<std::int32_t> trees(nodes[type].size());
      for (std::size_t i = 0; i < ids.size(); ++i) {
        ids[i] = static_cast<Id>(nodes[type][i] % num_nodes[type]);
        trees[i] = static_cast<std::int32_t>(nodes[type][i] / num_nodes[type]);
      }
      nodes[type] = {};
      minibatch.input_nodes.push_back(std::move(ids));
      minibatch.trees.push_back(std::move(trees));
    }
  } else {
    minibatch.input_nodes = std::move(nodes);
  }
  minibatch.layers = std::move(layers);
  std::reverse(minibatch.layers.begin(), minibatch.layers.end());
  return minibatch;
}

void throw_too_many_edges() {
  throw std::invalid_argument("a block has more than 2^31 - 1 edges; use smaller batches or fanouts");
}

#define DISKGNN_INSTANTIATE(Id, kTrees)                                                       \
  template void insert_seeds<Id, kTrees>(const DrawRequest&, std::span<const std::int64_t>,   \
                                         std::vector<PageArray<NodeKeys<Id, kTrees>::Key>>&); \
  template SampledMinibatch<Id> finished_minibatch<Id, kTrees>(                               \
      std::vector<PageArray<NodeKeys<Id, kTrees>::Key>>&&, std::vector<SampledLayer>&&,       \
      std::span<const std::vector<std::size_t>>, std::span<const std::int64_t>);

DISKGNN_INSTANTIATE(std::int32_t, false)
DISKGNN_INSTANTIATE(std::int32_t, true)
DISKGNN_INSTANTIATE(std::int64_t, false)
DISKGNN_INSTANTIATE(std::int64_t, true)

}  // namespace diskgnn
