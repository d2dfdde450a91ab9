#include "sampling/label_propagation.h"

#include <algorithm>
#include <stdexcept>

#include "graph/neighbor_order.h"

namespace diskgnn {

template <typename Node>
void LabelPropagation<Node>::visit(std::size_t first, std::span<const std::int64_t> offsets,
                                   std::span<const Node> neighbors) {
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], end = offsets[i + 1];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(neighbors.size()) || first + i >= labels_.size()) {
      throw std::out_of_range("indptr leads outside of indices");
    }
    const auto count = std::min(static_cast<std::size_t>(end - begin), kMostNeighbors);
    found_.clear();
    for (const Node neighbor : neighbors.subspan(static_cast<std::size_t>(begin), count)) {
      if (neighbor < 0 || static_cast<std::size_t>(neighbor) >= labels_.size()) {
        throw std::out_of_range("indices name a node that the graph does not have");
      }
      found_.push_back(labels_[static_cast<std::size_t>(neighbor)]);
    }
    Node& label = labels_[first + i];
    const Node better = most_frequent(label);
    --sizes_[static_cast<std::size_t>(label)];
    ++sizes_[static_cast<std::size_t>(better)];
    label = better;
  }
}

// Of `found_`, if it is not full; `own` counts as any other, and is what remains where there is none.
template <typename Node>
Node LabelPropagation<Node>::most_frequent(Node own) {
  std::sort(found_.begin(), found_.end());
  Node best = own;
  std::ptrdiff_t most = 0;
  for (auto run = found_.begin(); run != found_.end();) {
    const Node label = *run;
    const auto next = std::find_if(run, found_.end(), [label](Node other) { return other != label; });
    const std::ptrdiff_t count = next - run;
    run = next;
    if (label != own && sizes_[static_cast<std::size_t>(label)] >= most_nodes_) continue;
    if (count > most || (count == most && order_hash(label) < order_hash(best))) {
      most = count;
      best = label;
    }
  }
  return best;
}

template class LabelPropagation<std::int32_t>;
template class LabelPropagation<std::int64_t>;

}  // namespace diskgnn
