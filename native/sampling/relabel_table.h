// Global node -> local number, in order of first appearance: an open-addressing table sized to one minibatch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "draws.h"
#include "files/page_array.h"
#include "files/page_memory.h"

namespace diskgnn {

template <typename Node>
class RelabelTable {
 public:
  explicit RelabelTable(std::size_t expected_nodes = 0) { resize(expected_nodes); }

  // Holds just `nodes`, which are distinct. It keeps its size: what a minibatch has needed, the next one like it will.
  // The caller may expect more.
  void restart(const PageArray<Node>& nodes, std::size_t expected_nodes = 0) {
    const std::size_t wanted = std::max({nodes.size(), expected_nodes, entries_.size() / 2});
    // A table has at most 2^31 nodes, so that the numbers of the next one do not overflow.
    if (bits_for(wanted) != 64 - shift_ || base_ + used_ > std::numeric_limits<std::uint32_t>::max() / 2) {
      resize(wanted);
    } else {
      base_ += used_;
    }
    place(nodes);
  }

  // The local number of `node`; a new node gets the next one and is appended to `nodes`.
  std::int32_t insert(Node node, PageArray<Node>& nodes) {
    std::size_t slot = slot_of(node);
    for (;;) {
      Entry& entry = entries_[slot];
      if (entry.number < base_) {
        const auto local = static_cast<std::uint32_t>(nodes.size());
        entry = {node, base_ + local};
        nodes.push_back(node);
        used_ = local + 1;
        if (nodes.size() * 2 > entries_.size()) rehash(nodes, nodes.size());
        return static_cast<std::int32_t>(local);
      }
      if (entry.node == node) return static_cast<std::int32_t>(entry.number - base_);
      slot = (slot + 1) & mask_;
    }
  }

  // The local numbers of `neighbors` in `locals`; new nodes are appended to `nodes`.
  void insert_all(std::span<const Node> neighbors, PageArray<Node>& nodes, std::span<std::int32_t> locals) {
    for (std::size_t first = 0; first < neighbors.size(); first += kBlock) {
      const std::size_t last = std::min(first + kBlock, neighbors.size());
      const std::size_t most = nodes.size() + last - first;
      if (most * 2 > entries_.size()) rehash(nodes, most);
      std::size_t count = nodes.size();
      nodes.resize(most);
      for (std::size_t e = first; e < last; ++e) {
        if (e + kPrefetchDistance < neighbors.size()) prefetch(neighbors[e + kPrefetchDistance]);
        const Node node = neighbors[e];
        std::size_t slot = slot_of(node);
        while (static_cast<int>(entries_[slot].number >= base_) & static_cast<int>(entries_[slot].node != node)) {
          slot = (slot + 1) & mask_;
        }
        // Everything is written and the count decides what stays: nobody could predict which nodes are new.
        const std::uint32_t found = entries_[slot].number, next = base_ + static_cast<std::uint32_t>(count);
        const bool is_new = found < base_;
        const std::uint32_t number = is_new ? next : found;
        entries_[slot] = {node, number};
        nodes[count] = node;
        count += static_cast<std::size_t>(is_new);
        locals[e] = static_cast<std::int32_t>(number - base_);
      }
      nodes.resize(count);
      used_ = static_cast<std::uint32_t>(count);
    }
  }

  // Bytes of a table for `expected_nodes`.
  static std::uint64_t bytes_for(std::uint64_t expected_nodes) {
    return (std::uint64_t{1} << bits_for(expected_nodes)) * sizeof(Entry);
  }

  void prefetch(Node node) const { __builtin_prefetch(&entries_[slot_of(node)], 1); }

 private:
  // How far ahead memory is asked for: the table is far larger than the caches, so latency is the cost.
  static constexpr std::size_t kPrefetchDistance = 32;
  static constexpr std::size_t kBlock = 1024;  // nodes between two looks at whether the table is large enough

  struct Entry {
    Node node;
    std::uint32_t number;  // base_ + the local number; below base_ where there is no node
  };

  std::size_t slot_of(Node node) const {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(node) * 0x9e3779b97f4a7c15) >> shift_);
  }

  static int bits_for(std::uint64_t expected_nodes) {
    int bits = 4;
    while ((std::uint64_t{1} << bits) < expected_nodes * 2) ++bits;
    return bits;
  }

  // Empty: fresh pages are zeros, and numbers start with 1.
  void resize(std::size_t expected_nodes) {
    const int bits = bits_for(expected_nodes);
    const std::size_t size = std::size_t{1} << bits;
    memory_ = PageMemory(size * sizeof(Entry), Content::kZeros);
    entries_ = {reinterpret_cast<Entry*>(memory_.bytes().data()), size};
    mask_ = size - 1;
    shift_ = 64 - bits;
    base_ = 1;
  }

  void rehash(const PageArray<Node>& nodes, std::size_t most) {
    resize(most * 2);
    place(nodes);
  }

  void place(const PageArray<Node>& nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      std::size_t slot = slot_of(nodes[i]);
      while (entries_[slot].number >= base_) slot = (slot + 1) & mask_;
      entries_[slot] = {nodes[i], base_ + static_cast<std::uint32_t>(i)};
    }
    used_ = static_cast<std::uint32_t>(nodes.size());
  }

  PageMemory memory_{0};
  std::span<Entry> entries_;
  std::size_t mask_ = 0;
  int shift_ = 0;
  // Numbers go on from one minibatch to the next, so that what those before have left counts as empty.
  std::uint32_t base_ = 1, used_ = 0;
};

}  // namespace diskgnn
