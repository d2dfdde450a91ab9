// The order of a node's in-neighbours in a graph: ascending by a fixed hash of theirs. So a part of the circle of all
// hashes is a slice of every list, and coordinated draws are slices (sampling/neighbor_sampler.h).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "draws.h"

namespace diskgnn {

// A bijection, so two nodes never share a place. docs/FORMAT.md has it: who changes it changes the format of graphs.
constexpr std::uint64_t kOrderKey = 0x6e65696768626f72;
constexpr std::uint64_t order_hash(std::int64_t node) { return mix64(static_cast<std::uint64_t>(node) ^ kOrderKey); }
constexpr std::int64_t node_of_order_hash(std::uint64_t hash) {
  return static_cast<std::int64_t>(unmix64(hash) ^ kOrderKey);
}

// The first in [low, high) that does not precede, if those that do are its first ones; `high` if all do.
template <typename Precedes>
std::size_t first_not(std::size_t low, std::size_t high, const Precedes& precedes) {
  while (low < high) {
    const std::size_t middle = low + (high - low) / 2;
    if (precedes(middle)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The first of `neighbors` (in order) whose hash is at least `hash`; neighbors.size() if there is none. If they are
// out of order, it is some number up to that.
template <typename Node>
std::size_t first_at_or_after(std::span<const Node> neighbors, std::uint64_t hash) {
  const auto precedes = [&](std::size_t i) { return order_hash(neighbors[i]) < hash; };
  std::size_t low = 0, high = neighbors.size();  // all before `low` precede, none from `high` on
  if (high == 0) return 0;
  // Hashes are uniform: the place is about sqrt(size) / 2 from where it is expected.
  const auto expected = static_cast<std::size_t>(below(hash, high));
  std::size_t step = std::size_t{1} << (std::bit_width(high) / 2);
  if (precedes(expected)) {
    low = expected + 1;
    for (; high - low > step; step *= 2) {
      if (!precedes(low + step - 1)) {
        high = low + step - 1;
        break;
      }
      low += step;
    }
  } else {
    high = expected;
    for (; high - low > step; step *= 2) {
      if (precedes(high - step)) {
        low = high - step + 1;
        break;
      }
      high -= step;
    }
  }
  return first_not(low, high, precedes);
}

}  // namespace diskgnn
