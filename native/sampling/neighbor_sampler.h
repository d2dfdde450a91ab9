// Uniform neighbour sampling without replacement (GraphSAGE, Hamilton et al., NeurIPS 2017), one minibatch at a
// time.
//
// Draws are independent, or coordinated (after LABOR, Balin and Catalyurek, NeurIPS 2023): then all nodes of a
// minibatch agree on whom to look at. Lists of in-neighbours are in the order of a hash (graph/neighbor_order.h), and
// a node draws the slice of its list that begins at the first hash from `slice_start` on; the end of the list goes on
// at its beginning.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sampling/relabel_table.h"

namespace diskgnn {

struct SampledBlock {
  std::vector<std::int32_t> indptr;   // [num_dst + 1]
  std::vector<std::int32_t> indices;  // local source numbers
};

template <typename Node>
struct SampledMinibatch {
  std::vector<Node> input_nodes;     // the seeds first, then in order of first appearance
  std::vector<SampledBlock> blocks;  // outermost first
};

// What names one minibatch's random draws; with (layer, node) it names those of one node.
struct DrawKey {
  std::uint64_t sequence;                                   // (seed, split, epoch), mixed
  std::uint64_t minibatch;                                  // position in the epoch
  std::optional<std::uint64_t> slice_start = std::nullopt;  // draws are coordinated, and these two don't matter
};

// Which of a node's `degree` in-edges are drawn independently: appends min(fanout, degree) distinct positions in
// [0, degree) to `positions`; fanout -1 takes all. A pure function of its arguments: the in-memory and the sweeping
// sampler share it.
void draw_positions(DrawKey key, int layer, std::int64_t node, std::int64_t degree, int fanout,
                    std::vector<std::int64_t>& positions);

// Makes distinct `seeds` the first of a minibatch's `nodes`. Throws std::invalid_argument when one is out of range or
// repeated.
template <typename Node>
void insert_seeds(std::span<const std::int64_t> seeds, std::int64_t num_nodes, RelabelTable<Node>& table,
                  std::vector<Node>& nodes);

// In-neighbours of some nodes, copied into memory, for a topology whose indices are a memory map.
template <typename Node>
struct NeighborCache {
  std::span<const std::int64_t> starts;  // [N] where a node's begin in `neighbors`, -1 if they are not there; or empty
  std::span<const Node> neighbors;
};

// Samples `fanouts` (from the seeds outwards) around distinct `seeds`. Throws std::invalid_argument when a seed is
// out of range or repeated, or when a block would need more than 2^31 - 1 edges; std::out_of_range when the topology
// leads outside of itself (a damaged file). `cache` changes where neighbours are looked up, not which are drawn.
template <typename Node>
SampledMinibatch<Node> sample_minibatch(std::span<const std::int64_t> indptr, std::span<const Node> indices,
                                        std::span<const std::int64_t> seeds, std::span<const std::int32_t> fanouts,
                                        DrawKey key, const NeighborCache<Node>& cache = {});

}  // namespace diskgnn
