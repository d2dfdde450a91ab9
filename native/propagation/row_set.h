// Sets of nodes as bits, with ranks: the place that a member has among the members.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>

namespace diskgnn {

class RowSet {
 public:
  static constexpr std::size_t kBlockWords = 8;  // counts stand before so many words: an eighth of the bits' bytes

  // `words` are the bits of `num_nodes` nodes, in whole blocks; `before` has for each block, and the end, the members
  // before it.
  RowSet(std::span<const std::uint64_t> words, std::span<const std::int64_t> before, std::int64_t num_nodes)
      : words_(words), before_(before), num_nodes_(num_nodes) {
    if (words.size() % kBlockWords != 0 || before.size() != words.size() / kBlockWords + 1 || num_nodes < 0 ||
        static_cast<std::uint64_t>(num_nodes) > words.size() * 64) {
      throw std::invalid_argument("a set of rows: bits and counts do not fit the nodes");
    }
  }

  bool has(std::int64_t node) const { return (words_[word_of(node)] >> (node & 63) & 1) != 0; }

  // Inlined into functions for processors that count bits.
  inline __attribute__((always_inline)) std::int64_t rank(std::int64_t node) const {
    const std::size_t word = word_of(node), block = word / kBlockWords;
    std::int64_t found = before_[block];
    for (std::size_t w = block * kBlockWords; w < word; ++w) found += std::popcount(words_[w]);
    return found + std::popcount(words_[word] & ((std::uint64_t{1} << (node & 63)) - 1));
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
  std::span<const std::int64_t> before_;
  std::int64_t num_nodes_;
};

}  // namespace diskgnn
