#include "sampling/neighbor_sampler.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>

#include "draws.h"
#include "graph/neighbor_order.h"

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

// In-neighbours by node, some of them in a cache.
template <typename Node>
class Topology {
 public:
  Topology(std::span<const std::int64_t> indptr, std::span<const Node> indices, const NeighborCache<Node>& cache)
      : indptr_(indptr), indices_(indices), cache_(cache) {}

  std::int64_t num_nodes() const { return static_cast<std::int64_t>(indptr_.size()) - 1; }

  void prefetch_offsets(Node node) const { __builtin_prefetch(&indptr_[static_cast<std::size_t>(node)]); }

  std::span<const Node> neighbors_of(Node node) const {
    const auto v = static_cast<std::size_t>(node);
    const std::int64_t begin = indptr_[v], end = indptr_[v + 1];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(indices_.size())) {
      throw std::out_of_range("indptr is damaged at node " + std::to_string(node));
    }
    const auto degree = static_cast<std::size_t>(end - begin);
    const std::int64_t cached = cache_.starts.empty() ? -1 : cache_.starts[v];
    if (cached < 0) return indices_.subspan(static_cast<std::size_t>(begin), degree);
    if (cached > static_cast<std::int64_t>(cache_.neighbors.size()) - (end - begin)) {
      throw std::out_of_range("the neighbour cache is damaged");
    }
    return cache_.neighbors.subspan(static_cast<std::size_t>(cached), degree);
  }

 private:
  const std::span<const std::int64_t> indptr_;
  const std::span<const Node> indices_;
  const NeighborCache<Node>& cache_;
};

template <typename Node>
struct Scratch {
  RelabelTable<Node> table;
  std::vector<Node> nodes;
  std::vector<std::int64_t> positions;
  std::vector<const Node*> places;
  std::vector<Node> neighbors;
};

// Kept by the thread: fresh memory for every minibatch is a third of the time, spent in page faults. Inlined, its
// address would be looked up for every edge.
template <typename Node>
[[gnu::noinline]] Scratch<Node>& scratch_of_this_thread() {
  thread_local Scratch<Node> scratch;
  return scratch;
}

void end_list(SampledBlock& block, std::size_t num_edges) {
  if (num_edges > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw std::invalid_argument("a block has more than 2^31 - 1 edges; use smaller batches or fanouts");
  }
  block.indptr.push_back(static_cast<std::int32_t>(num_edges));
}

// Draws for each of scratch.nodes: scratch.neighbors, and where each one's begin in block.indptr.
template <typename Node>
void draw_independently(const Topology<Node>& topology, DrawKey key, int layer, int fanout, Scratch<Node>& scratch,
                        SampledBlock& block) {
  auto& [table, nodes, positions, places, neighbors] = scratch;
  places.clear();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) topology.prefetch_offsets(nodes[i + kPrefetchDistance]);
    const std::span<const Node> list = topology.neighbors_of(nodes[i]);
    positions.clear();
    draw_positions(key, layer, nodes[i], static_cast<std::int64_t>(list.size()), fanout, positions);
    for (const std::int64_t position : positions) places.push_back(list.data() + position);
    end_list(block, places.size());
  }
  neighbors.resize(places.size());
  for (std::size_t e = 0; e < places.size(); ++e) {
    if (e + kPrefetchDistance < places.size()) __builtin_prefetch(places[e + kPrefetchDistance]);
    neighbors[e] = *places[e];
  }
}

// The same with coordinated draws.
template <typename Node>
void draw_slices(const Topology<Node>& topology, std::uint64_t slice_start, int fanout, Scratch<Node>& scratch,
                 SampledBlock& block) {
  auto& nodes = scratch.nodes;
  auto& neighbors = scratch.neighbors;
  neighbors.clear();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + 2 * kPrefetchDistance < nodes.size()) topology.prefetch_offsets(nodes[i + 2 * kPrefetchDistance]);
    if (i + kPrefetchDistance < nodes.size()) {
      const std::span<const Node> ahead = topology.neighbors_of(nodes[i + kPrefetchDistance]);
      __builtin_prefetch(ahead.data() + below(slice_start, ahead.size()));
    }
    const std::span<const Node> list = topology.neighbors_of(nodes[i]);
    if (fanout < 0 || list.size() <= static_cast<std::size_t>(fanout)) {
      neighbors.insert(neighbors.end(), list.begin(), list.end());
    } else {
      const auto drawn = static_cast<std::size_t>(fanout);
      const std::span<const Node> tail = list.subspan(first_at_or_after(list, slice_start));
      const std::size_t before_end = std::min(drawn, tail.size());
      neighbors.insert(neighbors.end(), tail.begin(), tail.begin() + static_cast<std::ptrdiff_t>(before_end));
      neighbors.insert(neighbors.end(), list.begin(), list.begin() + static_cast<std::ptrdiff_t>(drawn - before_end));
    }
    end_list(block, neighbors.size());
  }
}

template <typename Node>
void require_nodes(std::span<const Node> neighbors, std::int64_t num_nodes) {
  for (const Node node : neighbors) {
    if (node < 0 || node >= num_nodes) {
      throw std::out_of_range("neighbour " + std::to_string(node) + " is not in [0, " + std::to_string(num_nodes) +
                              ")");
    }
  }
}

}  // namespace

template <typename Node>
SampledMinibatch<Node> sample_minibatch(std::span<const std::int64_t> indptr, std::span<const Node> indices,
                                        std::span<const std::int64_t> seeds, std::span<const std::int32_t> fanouts,
                                        DrawKey key, const NeighborCache<Node>& cache) {
  const Topology<Node> topology(indptr, indices, cache);
  SampledMinibatch<Node> minibatch;
  Scratch<Node>& scratch = scratch_of_this_thread<Node>();
  auto& [table, nodes, positions, places, neighbors] = scratch;
  table.clear(seeds.size());
  nodes.clear();
  insert_seeds(seeds, topology.num_nodes(), table, nodes);
  for (std::size_t layer = 0; layer < fanouts.size(); ++layer) {
    SampledBlock block;
    block.indptr.reserve(nodes.size() + 1);
    block.indptr.push_back(0);
    if (key.slice_start) {
      draw_slices(topology, *key.slice_start, fanouts[layer], scratch, block);
    } else {
      draw_independently(topology, key, static_cast<int>(layer), fanouts[layer], scratch, block);
    }
    require_nodes<Node>(neighbors, topology.num_nodes());
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
