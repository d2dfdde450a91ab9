// Sets of nodes as bits, with ranks: the place that a member has among the members.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace diskgnn {

class RankedNodes {
 public:
  // Two counts stand before so many words, a quarter of the bits' bytes: the members before the block, then those in it
  // before each word but the first, in 9 bits each (Vigna, "Broadword Implementation of Rank/Select Queries", 2008).
  static constexpr std::size_t kBlockWords = 8, kBlockCounts = 2, kCountBits = 9;

  // `words` are the bits of `num_nodes` nodes, in whole blocks; `counts` are those of each block, then all members.
  RankedNodes(std::span<const std::uint64_t> words, std::span<const std::int64_t> counts, std::int64_t num_nodes)
      : words_(words), counts_(counts), num_nodes_(num_nodes) {
    if (words.size() % kBlockWords != 0 || counts.size() != words.size() / kBlockWords * kBlockCounts + 1 ||
        num_nodes < 0 || static_cast<std::uint64_t>(num_nodes) > words.size() * 64) {
      throw std::invalid_argument("ranked nodes: bits and counts do not fit the nodes");
    }
  }

  bool has(std::int64_t node) const { return (words_[word_of(node)] >> (node & 63) & 1) != 0; }

  // Inlined into functions for processors that count bits.
  inline __attribute__((always_inline)) std::int64_t rank(std::int64_t node) const {
    const std::size_t word = word_of(node);
    const std::int64_t* const counts = &counts_[word / kBlockWords * kBlockCounts];
    const auto shift =
        kCountBits * ((word + kBlockWords - 1) % kBlockWords);  // to the highest bit: 0, of the first word
    const auto in_block = static_cast<std::uint64_t>(counts[1]) >> shift & ((1 << kCountBits) - 1);
    return counts[0] + static_cast<std::int64_t>(in_block) +
           std::popcount(words_[word] & ((std::uint64_t{1} << (node & 63)) - 1));
  }

  // Throws std::out_of_range, as a damaged topology may name any node.
  std::size_t word_of(std::int64_t node) const {
    if (static_cast<std::uint64_t>(node) >= static_cast<std::uint64_t>(num_nodes_)) {
      throw std::out_of_range("a source that is no node");
    }
    return static_cast<std::size_t>(node) / 64;
  }

 private:
  std::span<const std::uint64_t> words_;
  std::span<const std::int64_t> counts_;
  std::int64_t num_nodes_;
};

}  // namespace diskgnn
