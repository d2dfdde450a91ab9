// Moves the rows of one partition of the feature file into every extent that needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// The extents of one file, as far as their rows are concerned. T extents.
template <typename Node>
struct ExtentRows {
  int descriptor;                         // the file, open for writing
  std::span<const Node> nodes;            // the rows of all extents, extent after extent, ascending in each
  std::span<const std::int64_t> bounds;   // [T+1] extent t's rows are nodes[bounds[t], bounds[t+1])
  std::span<const std::int64_t> offsets;  // [T] where row 0 of each extent lies in the file
  std::span<std::int64_t> cursors;        // [T] next row to write, an index into `nodes`; advanced
  std::span<std::uint32_t> checksums;     // [T] CRC-32C of the rows written so far; continued
};

// `partition` holds the rows of nodes [first_node, last_node); partitions come in ascending order. Threads share the
// extents. Throws std::system_error when a write fails.
template <typename Node>
void pack_partition(const ExtentRows<Node>& extents, std::span<const std::byte> partition, std::int64_t first_node,
                    std::int64_t last_node, std::size_t row_bytes, unsigned num_threads);

// Writes row `sources[i]` of `partition` as row `places[i]` of the file's rows, which start at `offset`. `places`
// ascend: neighbours are written together. Throws std::system_error when a write fails.
void scatter_rows(int descriptor, std::int64_t offset, std::span<const std::int64_t> places,
                  std::span<const std::int64_t> sources, std::span<const std::byte> partition, std::size_t row_bytes,
                  unsigned num_threads);

}  // namespace diskgnn
