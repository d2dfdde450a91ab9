// The edges that a hop needs: the sets of nodes that they lead from, and lists in which sources are numbered by rank.
#pragma once

#include <cstdint>
#include <span>

#include "files/page_array.h"
#include "propagation/ranked_nodes.h"

namespace diskgnn {

// Some of the edges of a CSC matrix, front to back: sources of the edges from number `begin` on, into nodes from
// `first_node` on, whose lists end and begin at `offsets`. The first list may have begun before, the last one may go
// on.
template <typename Id>
struct EdgePiece {
  std::int64_t first_node;
  std::span<const std::int64_t> offsets;
  std::int64_t begin;
  std::span<const Id> sources;
  std::span<const float> weights;  // empty: all 1
};

// Adds the sources of edges into `wanted` nodes to the set `marked`; returns how many edges these are. Throws
// std::out_of_range where the topology leads outside of the set, std::invalid_argument where offsets do not ascend.
template <typename Id>
std::int64_t mark_sources(const EdgePiece<Id>& piece, const RankedNodes& wanted, std::span<std::uint64_t> marked,
                          std::int64_t num_nodes);

template <typename Id>
struct PrunedEdges {
  PageArray<std::int64_t> offsets;  // [rows + 1] of the wanted nodes of the piece
  PageArray<Id> sources;            // their ranks
  PageArray<float> weights;
  bool continues = false, goes_on = false;  // the first row a list of the piece before; the last one in the next piece
};

// The lists of `wanted` nodes, with sources as ranks in `sources_set`. With `add_own` each ends with the node itself,
// of weight 1. Throws as `mark_sources`.
template <typename Id>
PrunedEdges<Id> prune_edges(const EdgePiece<Id>& piece, const RankedNodes& wanted, const RankedNodes& sources_set,
                            bool add_own);

}  // namespace diskgnn
