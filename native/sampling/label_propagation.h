// Which nodes lie near each other: labels that spread from neighbour to neighbour while the topology passes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace diskgnn {

// Label propagation (Raghavan, Albert and Kumara, Phys. Rev. E 2007) with labels of limited size (Meyerhenke, Sanders
// and Schulz, SEA 2014). Each node takes the label that most of its in-neighbours have; the one of least hash where
// several are as frequent, so that the first sweep, when every node is its own label, is a MinHash of neighbourhoods.
// Nodes are visited in order and see the labels of now: the same graph gives the same labels.
template <typename Node>
class LabelPropagation {
 public:
  // Of a longer list, the first ones stand for all: lists are sorted by hash (graph/neighbor_order.h), so that they are
  // a random part, and the same part for all nodes.
  static constexpr std::size_t kMostNeighbors = 256;

  // `labels` [N], at first each node's own number; `sizes` [N], nodes that have each label, at first 1.
  LabelPropagation(std::span<Node> labels, std::span<std::int32_t> sizes, std::int32_t most_nodes)
      : labels_(labels), sizes_(sizes), most_nodes_(most_nodes) {}

  // Visits nodes `first` and later: node first + i has `neighbors[offsets[i]]` to `neighbors[offsets[i + 1]]`.
  // Throws std::out_of_range if these lead outside.
  void visit(std::size_t first, std::span<const std::int64_t> offsets, std::span<const Node> neighbors);

 private:
  Node most_frequent(Node own);

  std::span<Node> labels_;
  std::span<std::int32_t> sizes_;
  std::int32_t most_nodes_;
  std::vector<Node> found_;  // labels of one node's neighbours
};

}  // namespace diskgnn
