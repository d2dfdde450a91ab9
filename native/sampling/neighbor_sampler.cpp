#include "sampling/neighbor_sampler.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "graph/random.h"

namespace diskgnn {
namespace {

// How far ahead memory is asked for: the topology is far larger than the caches, so latency is the cost.
constexpr std::size_t kPrefetchDistance = 64;
// Up to this fanout, looking through what was drawn already is faster than a hash set.
constexpr int kLinearSearchFanout = 32;

}  // namespace

void draw_positions(DrawKey key, int layer, std::int64_t node, std::int64_t degree, int fanout,
                    std::vector<std::int64_t>& positions) {
  if (fanout < 0 || degree <= fanout) {
    for (std::int64_t i = 0; i < degree; ++i) positions.push_back(i);
    return;
  }
  const std::uint64_t state = combine(combine(combine(key.sequence, key.minibatch), static_cast<std::uint64_t>(layer)),
                                      static_cast<std::uint64_t>(node));
  // Floyd's algorithm (Bentley and Floyd, CACM 1987): a uniform subset with `fanout` draws.
  const auto draw = [&](int i, const auto& is_drawn) {
    const std::int64_t last = degree - fanout + i;
    const std::uint64_t bits = mix64(state + static_cast<std::uint64_t>(i));
    const auto position = static_cast<std::int64_t>(below(bits, static_cast<std::uint64_t>(last) + 1));
    return is_drawn(position) ? last : position;
  };
  const std::size_t first = positions.size();
  positions.resize(first + static_cast<std::size_t>(fanout));
  std::int64_t* const drawn = positions.data() + first;
  if (fanout <= kLinearSearchFanout) {
    for (int i = 0; i < fanout; ++i) {
      drawn[i] = draw(i, [&](std::int64_t position) { return std::find(drawn, drawn + i, position) != drawn + i; });
    }
  } else {
    std::unordered_set<std::int64_t> seen;
    for (int i = 0; i < fanout; ++i) {
      drawn[i] = draw(i, [&](std::int64_t position) { return seen.contains(position); });
      seen.insert(drawn[i]);
    }
  }
}

template <typename Node>
void insert_seeds(std::span<const std::int64_t> seeds, std::int64_t num_nodes, RelabelTable<Node>& table,
                  std::vector<Node>& nodes) {
  for (const std::int64_t seed : seeds) {
    if (seed < 0 || seed >= num_nodes) {
      throw std::invalid_argument("seed " + std::to_string(seed) + " is not in [0, " + std::to_string(num_nodes) + ")");
    }
    const std::size_t before = nodes.size();
    table.insert(static_cast<Node>(seed), nodes);
    if (nodes.size() == before) throw std::invalid_argument("seed " + std::to_string(seed) + " is repeated");
  }
}

namespace {

template <typename Node>
struct Scratch {
  RelabelTable<Node> table;
  std::vector<Node> nodes;
  std::vector<std::int64_t> positions;
  std::vector<Node> neighbors;
};

// Kept by the thread: fresh memory for every minibatch is a third of the time, spent in page faults. Inlined, its
// address would be looked up for every edge.
template <typename Node>
[[gnu::noinline]] Scratch<Node>& scratch_of_this_thread() {
  thread_local Scratch<Node> scratch;
  return scratch;
}

}  // namespace

template <typename Node>
SampledMinibatch<Node> sample_minibatch(std::span<const std::int64_t> indptr, std::span<const Node> indices,
                                        std::span<const std::int64_t> seeds, std::span<const std::int32_t> fanouts,
                                        DrawKey key, const NeighborCache<Node>& cache) {
  const auto num_nodes = static_cast<std::int64_t>(indptr.size()) - 1;
  const auto num_edges = static_cast<std::int64_t>(indices.size());
  const auto num_cached = static_cast<std::int64_t>(cache.neighbors.size());
  // Positions from num_edges on are those of the cache.
  const auto column = [&](std::int64_t position) {
    return position < num_edges ? indices.data() + position : cache.neighbors.data() + (position - num_edges);
  };
  SampledMinibatch<Node> minibatch;
  auto& [table, nodes, positions, neighbors] = scratch_of_this_thread<Node>();
  table.clear(seeds.size());
  nodes.clear();
  insert_seeds(seeds, num_nodes, table, nodes);

  for (std::size_t layer = 0; layer < fanouts.size(); ++layer) {
    const std::size_t num_dst = nodes.size();
    SampledBlock block;
    block.indptr.reserve(num_dst + 1);
    block.indptr.push_back(0);
    positions.clear();
    for (std::size_t i = 0; i < num_dst; ++i) {
      if (i + kPrefetchDistance < num_dst)
        __builtin_prefetch(&indptr[static_cast<std::size_t>(nodes[i + kPrefetchDistance])]);
      const auto node = static_cast<std::size_t>(nodes[i]);
      const std::int64_t begin = indptr[node], end = indptr[node + 1];
      if (begin < 0 || begin > end || end > num_edges) {
        throw std::out_of_range("indptr is damaged at node " + std::to_string(node));
      }
      const std::int64_t cached = cache.starts.empty() ? -1 : cache.starts[node];
      if (cached >= 0 && cached > num_cached - (end - begin)) throw std::out_of_range("the neighbour cache is damaged");
      const std::int64_t start = cached < 0 ? begin : num_edges + cached;
      const std::size_t first = positions.size();
      draw_positions(key, static_cast<int>(layer), nodes[i], end - begin, fanouts[layer], positions);
      for (std::size_t p = first; p < positions.size(); ++p) positions[p] += start;
      if (positions.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
        throw std::invalid_argument("a block has more than 2^31 - 1 edges; use smaller batches or fanouts");
      }
      block.indptr.push_back(static_cast<std::int32_t>(positions.size()));
    }
    neighbors.resize(positions.size());
    for (std::size_t e = 0; e < positions.size(); ++e) {
      if (e + kPrefetchDistance < positions.size()) {
        __builtin_prefetch(column(positions[e + kPrefetchDistance]));
      }
      neighbors[e] = *column(positions[e]);
      if (neighbors[e] < 0 || neighbors[e] >= num_nodes) {
        throw std::out_of_range("neighbour " + std::to_string(neighbors[e]) + " is not in [0, " +
                                std::to_string(num_nodes) + ")");
      }
    }
    block.indices.resize(neighbors.size());
    table.insert_all(neighbors, nodes, block.indices);
    minibatch.blocks.push_back(std::move(block));
  }
  minibatch.input_nodes.assign(nodes.begin(), nodes.end());
  std::reverse(minibatch.blocks.begin(), minibatch.blocks.end());
  return minibatch;
}

template void insert_seeds(std::span<const std::int64_t>, std::int64_t, RelabelTable<std::int32_t>&,
                           std::vector<std::int32_t>&);
template void insert_seeds(std::span<const std::int64_t>, std::int64_t, RelabelTable<std::int64_t>&,
                           std::vector<std::int64_t>&);
template SampledMinibatch<std::int32_t> sample_minibatch(std::span<const std::int64_t>, std::span<const std::int32_t>,
                                                         std::span<const std::int64_t>, std::span<const std::int32_t>,
                                                         DrawKey, const NeighborCache<std::int32_t>&);
template SampledMinibatch<std::int64_t> sample_minibatch(std::span<const std::int64_t>, std::span<const std::int64_t>,
                                                         std::span<const std::int64_t>, std::span<const std::int32_t>,
                                                         DrawKey, const NeighborCache<std::int64_t>&);

}  // namespace diskgnn
