// Caches of rows under an eviction policy that decides online, one request after the other: which slot of a given
// memory each row has. The rows themselves are moved by `gather_cached` (native/baselines/row_gather.h).
//
// Policies are those published, a row being an object of size one and a minibatch its rows in the order of its input
// nodes. No row is pinned while its minibatch is gathered: a later miss of the same minibatch may evict it. That is
// safe because hits are copied out before any admitted row is copied in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace diskgnn {

// A doubly linked list of slots, youngest first, over links that several lists share: a slot is in at most one.
class SlotList {
 public:
  struct Links {
    std::vector<std::int32_t> older, younger;  // [slots], -1 at the ends
    explicit Links(std::int32_t slots)
        : older(static_cast<std::size_t>(slots), -1), younger(static_cast<std::size_t>(slots), -1) {}
  };

  explicit SlotList(Links& links) : links_(&links) {}
  void push_youngest(std::int32_t slot);
  void erase(std::int32_t slot);
  std::int32_t youngest() const { return youngest_; }
  std::int32_t oldest() const { return oldest_; }
  std::int32_t younger_than(std::int32_t slot) const { return links_->younger[static_cast<std::size_t>(slot)]; }
  std::int64_t size() const { return size_; }

 private:
  Links* links_;
  std::int32_t youngest_ = -1, oldest_ = -1;
  std::int64_t size_ = 0;
};

class RowCache {
 public:
  virtual ~RowCache() = default;

  // Requests each of `nodes`, which are distinct: slots[i] becomes the slot where row nodes[i] is, or -1 if it has to
  // be read. Appends (position in the minibatch, slot) for each row that enters the cache, in order: a slot that is
  // named twice belongs to the last. Throws std::out_of_range for a node that is not in [0, num_nodes).
  template <typename Node>
  void lookup(std::span<const Node> nodes, std::span<std::int32_t> slots, std::vector<std::int32_t>& admissions);

 protected:
  RowCache(std::int64_t num_nodes, std::int32_t capacity);

  virtual void hit(std::int32_t slot) = 0;
  // A row that is not in the cache was requested: the slot that it gets. Evicted rows are given to `evict` first.
  virtual std::int32_t admit(std::int64_t node) = 0;

  std::int32_t free_slot();               // one that no row has, -1 if there is none
  std::int64_t evict(std::int32_t slot);  // frees the slot; returns the node
  static constexpr std::int32_t kAbsent = -1;

  std::int32_t capacity_;
  std::vector<std::int32_t> location_;  // [N] slot; kAbsent; policies use other negative numbers for nodes remembered
  std::vector<std::int64_t> node_of_slot_;  // [C]

 private:
  std::vector<std::int32_t> free_slots_;
};

// Least recently used.
class LruCache final : public RowCache {
 public:
  LruCache(std::int64_t num_nodes, std::int32_t capacity);

 private:
  void hit(std::int32_t slot) override;
  std::int32_t admit(std::int64_t node) override;

  SlotList::Links links_;
  SlotList recency_;
};

// SIEVE (Zhang et al., NSDI 2024), algorithm 1: a hand walks from the oldest row to younger ones, clears the mark of
// rows that were visited, and evicts the first that was not.
class SieveCache final : public RowCache {
 public:
  SieveCache(std::int64_t num_nodes, std::int32_t capacity);

 private:
  void hit(std::int32_t slot) override;
  std::int32_t admit(std::int64_t node) override;

  SlotList::Links links_;
  SlotList queue_;
  std::vector<bool> visited_;  // [C]
  std::int32_t hand_ = -1;
};

// S3-FIFO (Yang et al., SOSP 2023), algorithm 1: a small queue S of a tenth of the cache, a main queue M of the rest, a
// ghost queue G that remembers as many nodes as M holds rows. Frequencies are capped at 3 and cleared when a row moves
// from S to M; M is full when it has more than its share. A node that comes back from G leaves it.
class S3FifoCache final : public RowCache {
 public:
  S3FifoCache(std::int64_t num_nodes, std::int32_t capacity);

 private:
  void hit(std::int32_t slot) override;
  std::int32_t admit(std::int64_t node) override;
  void evict_small();
  void evict_main();
  void remember(std::int64_t node);

  std::int32_t small_capacity_, main_capacity_;
  SlotList::Links links_, ghost_links_;
  SlotList small_, main_, ghosts_;
  std::vector<std::int8_t> frequency_;       // [C]
  std::vector<std::int64_t> node_of_ghost_;  // [capacity of M]
  std::vector<std::int32_t> free_ghosts_;
};

// 'lru', 's3-fifo' or 'sieve'. Throws std::invalid_argument for others and for a capacity below 1. Memory: 4 bytes a
// node and at most 40 a slot.
std::unique_ptr<RowCache> make_row_cache(const std::string& policy, std::int64_t num_nodes, std::int32_t capacity);

}  // namespace diskgnn
