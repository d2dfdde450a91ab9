// A graph of types on disk: one CSC for each type of edges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "files/direct_file.h"

namespace diskgnn {

// Numbers in a file, one per node or edge.
struct Column {
  DirectFile file;
  std::uint64_t offset;  // of the data in the file, in bytes
  unsigned item_bytes;
};

// The edges of one type: a CSC topology on disk.
struct RelationFiles {
  std::int32_t source = 0, destination = 0;  // numbers of node types
  std::int64_t num_edges = 0;
  Column indptr, indices;                // int64 [N + 1]; int32 or int64 [E]
  std::optional<Column> weights, times;  // float [E]; int64 [E]
  bool by_time = false;                  // as of a Relation
};

struct GraphFiles {
  GraphFiles() = default;
  GraphFiles(const GraphFiles&) = delete;

  std::vector<std::int64_t> num_nodes;                    // by node type
  std::vector<std::span<const std::int64_t>> node_times;  // by node type: [N] in memory or mapped, or empty
  std::vector<RelationFiles> relations;                   // by number of the edge type

  bool has_times(const RelationFiles& relation) const {
    return relation.times || !node_times[static_cast<std::size_t>(relation.source)].empty();
  }
};

}  // namespace diskgnn
