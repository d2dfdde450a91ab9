// A graph of types in memory: one CSC for each type of edges.
#pragma once

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace diskgnn {

// Numbers of nodes, int32 or int64.
using NodeSpan = std::variant<std::span<const std::int32_t>, std::span<const std::int64_t>>;

// The edges of one type. In-neighbours of destination v are indices[indptr[v]:indptr[v + 1]].
struct Relation {
  std::int32_t source = 0, destination = 0;  // numbers of node types
  std::span<const std::int64_t> indptr;      // [N + 1], N destinations
  NodeSpan indices;                          // [E]
  std::span<const float> weights;            // [E], or empty
  std::span<const std::int64_t> times;       // [E], or empty
  // In-neighbours of some nodes in memory, for indices that are a memory map: where a node's begin in
  // `cached_neighbors`, -1 if they are not there; or empty.
  std::span<const std::int64_t> cache_starts;
  NodeSpan cached_neighbors;
  // In-neighbours are in the order of how old edges are, and not in that of their hashes alone.
  bool by_time = false;
};

struct TypedTopology {
  std::vector<std::int64_t> num_nodes;                    // by node type
  std::vector<std::span<const std::int64_t>> node_times;  // by node type: [N], or empty
  std::vector<Relation> relations;                        // by number of the edge type
};

}  // namespace diskgnn
