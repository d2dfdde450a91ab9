// Sorts lists of in-neighbours by `order_hash`, which is computed once of each: comparing nodes would do it again and
// again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace diskgnn {

class NeighborSort {
 public:
  NeighborSort();

  template <typename Node>
  void sort(std::span<Node> nodes);

 private:
  template <typename Node>
  void sort_below(std::span<Node> nodes, int shared_bits);
  void place(std::size_t count, int shared_bits);

  // Of a list, or of the part of a long one whose hashes begin with the same bits: a hub takes no more memory.
  std::vector<std::uint64_t> hashes_, sorted_;
  std::vector<std::uint32_t> ends_;
};

}  // namespace diskgnn
