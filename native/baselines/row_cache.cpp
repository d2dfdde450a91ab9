#include "baselines/row_cache.h"

#include <algorithm>
#include <stdexcept>

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchDistance = 16;
constexpr std::int8_t kMaxFrequency = 3;
constexpr std::int32_t kFirstGhost = -2;  // location_ of ghost g is kFirstGhost - g

}  // namespace

void SlotList::push_youngest(std::int32_t slot) {
  links_->older[static_cast<std::size_t>(slot)] = youngest_;
  links_->younger[static_cast<std::size_t>(slot)] = -1;
  (youngest_ < 0 ? oldest_ : links_->younger[static_cast<std::size_t>(youngest_)]) = slot;
  youngest_ = slot;
  ++size_;
}

void SlotList::erase(std::int32_t slot) {
  const std::int32_t older = links_->older[static_cast<std::size_t>(slot)];
  const std::int32_t younger = links_->younger[static_cast<std::size_t>(slot)];
  (older < 0 ? oldest_ : links_->younger[static_cast<std::size_t>(older)]) = younger;
  (younger < 0 ? youngest_ : links_->older[static_cast<std::size_t>(younger)]) = older;
  --size_;
}

RowCache::RowCache(std::int64_t num_nodes, std::int32_t capacity)
    : capacity_(capacity),
      location_(static_cast<std::size_t>(num_nodes), kAbsent),
      node_of_slot_(static_cast<std::size_t>(capacity), -1) {
  free_slots_.reserve(node_of_slot_.size());
  for (std::int32_t slot = capacity; slot-- > 0;) free_slots_.push_back(slot);
}

template <typename Node>
void RowCache::lookup(std::span<const Node> nodes, std::span<std::int32_t> slots,
                      std::vector<std::int32_t>& admissions) {
  const auto num_nodes = static_cast<std::int64_t>(location_.size());
  for (const Node node : nodes) {
    if (node < 0 || node >= num_nodes) {
      throw std::out_of_range("node " + std::to_string(node) + " is not in [0, " + std::to_string(num_nodes) + ")");
    }
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&location_[static_cast<std::size_t>(nodes[i + kPrefetchDistance])], 1);
    }
    const auto node = static_cast<std::size_t>(nodes[i]);
    if (location_[node] >= 0) {
      slots[i] = location_[node];
      hit(slots[i]);
      continue;
    }
    slots[i] = -1;
    const std::int32_t slot = admit(nodes[i]);
    location_[node] = slot;
    node_of_slot_[static_cast<std::size_t>(slot)] = nodes[i];
    admissions.insert(admissions.end(), {static_cast<std::int32_t>(i), slot});
  }
}

std::int32_t RowCache::free_slot() {
  if (free_slots_.empty()) return -1;
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

std::int64_t RowCache::evict(std::int32_t slot) {
  const std::int64_t node = node_of_slot_[static_cast<std::size_t>(slot)];
  location_[static_cast<std::size_t>(node)] = kAbsent;
  free_slots_.push_back(slot);
  return node;
}

LruCache::LruCache(std::int64_t num_nodes, std::int32_t capacity)
    : RowCache(num_nodes, capacity), links_(capacity), recency_(links_) {}

void LruCache::hit(std::int32_t slot) {
  recency_.erase(slot);
  recency_.push_youngest(slot);
}

std::int32_t LruCache::admit(std::int64_t) {
  if (recency_.size() == capacity_) {
    const std::int32_t victim = recency_.oldest();
    recency_.erase(victim);
    evict(victim);
  }
  const std::int32_t slot = free_slot();
  recency_.push_youngest(slot);
  return slot;
}

SieveCache::SieveCache(std::int64_t num_nodes, std::int32_t capacity)
    : RowCache(num_nodes, capacity), links_(capacity), queue_(links_), visited_(static_cast<std::size_t>(capacity)) {}

void SieveCache::hit(std::int32_t slot) { visited_[static_cast<std::size_t>(slot)] = true; }

std::int32_t SieveCache::admit(std::int64_t) {
  if (queue_.size() == capacity_) {
    std::int32_t victim = hand_ < 0 ? queue_.oldest() : hand_;
    while (visited_[static_cast<std::size_t>(victim)]) {
      visited_[static_cast<std::size_t>(victim)] = false;
      victim = queue_.younger_than(victim);
      if (victim < 0) victim = queue_.oldest();
    }
    hand_ = queue_.younger_than(victim);
    queue_.erase(victim);
    evict(victim);
  }
  const std::int32_t slot = free_slot();
  visited_[static_cast<std::size_t>(slot)] = false;
  queue_.push_youngest(slot);
  return slot;
}

S3FifoCache::S3FifoCache(std::int64_t num_nodes, std::int32_t capacity)
    : RowCache(num_nodes, capacity),
      small_capacity_(std::max(1, capacity / 10)),
      main_capacity_(capacity - small_capacity_),
      links_(capacity),
      ghost_links_(main_capacity_),
      small_(links_),
      main_(links_),
      ghosts_(ghost_links_),
      frequency_(static_cast<std::size_t>(capacity)),
      node_of_ghost_(static_cast<std::size_t>(main_capacity_), -1) {
  for (std::int32_t ghost = main_capacity_; ghost-- > 0;) free_ghosts_.push_back(ghost);
}

void S3FifoCache::hit(std::int32_t slot) {
  std::int8_t& frequency = frequency_[static_cast<std::size_t>(slot)];
  frequency = std::min<std::int8_t>(static_cast<std::int8_t>(frequency + 1), kMaxFrequency);
}

std::int32_t S3FifoCache::admit(std::int64_t node) {
  while (small_.size() + main_.size() >= capacity_) {
    if (small_.size() >= small_capacity_) {
      evict_small();
    } else {
      evict_main();
    }
  }
  // Looked up after evicting, as published: what was just evicted may have pushed the node out of G.
  const std::int32_t location = location_[static_cast<std::size_t>(node)];
  const std::int32_t slot = free_slot();
  frequency_[static_cast<std::size_t>(slot)] = 0;
  if (location <= kFirstGhost) {
    const std::int32_t ghost = kFirstGhost - location;
    ghosts_.erase(ghost);
    free_ghosts_.push_back(ghost);
    main_.push_youngest(slot);
  } else {
    small_.push_youngest(slot);
  }
  return slot;
}

void S3FifoCache::evict_small() {
  while (small_.size() > 0) {
    const std::int32_t tail = small_.oldest();
    small_.erase(tail);
    if (frequency_[static_cast<std::size_t>(tail)] <= 1) {
      remember(evict(tail));
      return;
    }
    frequency_[static_cast<std::size_t>(tail)] = 0;
    main_.push_youngest(tail);
    if (main_.size() > main_capacity_) evict_main();
  }
}

void S3FifoCache::evict_main() {
  while (main_.size() > 0) {
    const std::int32_t tail = main_.oldest();
    main_.erase(tail);
    if (frequency_[static_cast<std::size_t>(tail)] == 0) {
      evict(tail);
      return;
    }
    --frequency_[static_cast<std::size_t>(tail)];
    main_.push_youngest(tail);
  }
}

void S3FifoCache::remember(std::int64_t node) {
  if (main_capacity_ == 0) return;
  if (free_ghosts_.empty()) {
    const std::int32_t oldest = ghosts_.oldest();
    ghosts_.erase(oldest);
    location_[static_cast<std::size_t>(node_of_ghost_[static_cast<std::size_t>(oldest)])] = kAbsent;
    free_ghosts_.push_back(oldest);
  }
  const std::int32_t ghost = free_ghosts_.back();
  free_ghosts_.pop_back();
  node_of_ghost_[static_cast<std::size_t>(ghost)] = node;
  location_[static_cast<std::size_t>(node)] = kFirstGhost - ghost;
  ghosts_.push_youngest(ghost);
}

std::unique_ptr<RowCache> make_row_cache(const std::string& policy, std::int64_t num_nodes, std::int32_t capacity) {
  if (num_nodes < 0 || capacity < 1) throw std::invalid_argument("a cache holds at least one row");
  if (policy == "lru") return std::make_unique<LruCache>(num_nodes, capacity);
  if (policy == "sieve") return std::make_unique<SieveCache>(num_nodes, capacity);
  if (policy == "s3-fifo") return std::make_unique<S3FifoCache>(num_nodes, capacity);
  throw std::invalid_argument("policy: expected lru, s3-fifo or sieve, found " + policy);
}

template void RowCache::lookup(std::span<const std::int32_t>, std::span<std::int32_t>, std::vector<std::int32_t>&);
template void RowCache::lookup(std::span<const std::int64_t>, std::span<std::int32_t>, std::vector<std::int32_t>&);

}  // namespace diskgnn
