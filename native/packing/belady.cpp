#include "packing/belady.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "draws.h"
#include "graph/radix_sort.h"

namespace diskgnn {
namespace {

constexpr std::int32_t kAbsent = -1;
constexpr std::int32_t kMust = -1;
constexpr std::size_t kPrefetchDistance = 64;

int bits_for(std::uint64_t values) { return static_cast<int>(std::bit_width(values)); }

}  // namespace

template <typename Node>
void count_nodes(std::span<std::int32_t> counts, std::span<const Node> nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&counts[static_cast<std::size_t>(nodes[i + kPrefetchDistance])], 1);
    }
    ++counts[static_cast<std::size_t>(nodes[i])];
  }
}

template <typename Node>
std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t> next_use, std::span<const Node> nodes,
                                             std::int32_t batch) {
  std::vector<std::int32_t> before(nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&next_use[static_cast<std::size_t>(nodes[i + kPrefetchDistance])], 1);
    }
    before[i] = std::exchange(next_use[static_cast<std::size_t>(nodes[i])], batch);
  }
  return before;
}

BeladyPlanner::BeladyPlanner(std::span<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
                             std::int32_t num_batches)
    : location_(location),
      num_static_(num_static),
      capacity_(capacity),
      num_batches_(num_batches),
      fingerprints_(static_cast<std::size_t>(num_batches), 0),
      waiting_(2 * static_cast<std::size_t>(num_batches) + 1),
      node_of_slot_(static_cast<std::size_t>(capacity), -1),
      initial_((location.size() + 63) / 64, 0) {
  free_slots_.reserve(node_of_slot_.size());
  for (std::int32_t slot = capacity; slot-- > 0;) free_slots_.push_back(slot);
}

void BeladyPlanner::wait(std::int32_t slot, std::int32_t next_use) {
  waiting_[static_cast<std::size_t>(next_use)].push_back(slot);
  furthest_ = std::max(furthest_, next_use);
}

void BeladyPlanner::occupy(std::int32_t slot, std::int64_t node) {
  node_of_slot_[static_cast<std::size_t>(slot)] = node;
  location_[static_cast<std::size_t>(node)] = slot;
  fingerprint_ += mix64(static_cast<std::uint64_t>(node));
}

void BeladyPlanner::release(std::int32_t slot) {
  std::int64_t& node = node_of_slot_[static_cast<std::size_t>(slot)];
  fingerprint_ -= mix64(static_cast<std::uint64_t>(node));
  location_[static_cast<std::size_t>(node)] = kAbsent;
  node = -1;
  free_slots_.push_back(slot);
}

// A free slot, or that of the resident needed last if that is later than `next_use`; -1 when nothing gives way.
std::int32_t BeladyPlanner::take_slot(std::int32_t next_use) {
  if (free_slots_.empty()) {
    while (furthest_ > now_ && waiting_[static_cast<std::size_t>(furthest_)].empty()) {
      waiting_[static_cast<std::size_t>(furthest_--)] = std::vector<std::int32_t>();  // its memory, too
    }
    if (furthest_ <= std::max(next_use, now_)) return kAbsent;
    std::vector<std::int32_t>& last = waiting_[static_cast<std::size_t>(furthest_)];
    const std::int32_t victim = last.back();
    last.pop_back();
    if (last.size() >= kPrefetchDistance) {
      __builtin_prefetch(&node_of_slot_[static_cast<std::size_t>(last[last.size() - kPrefetchDistance])], 1);
    }
    release(victim);
  }
  const std::int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

template <typename Node>
bool BeladyPlanner::warm_up(std::span<const Node> nodes, std::span<const std::int32_t> next_uses) {
  if (forced_) throw std::logic_error("warm-up after the last round began");
  settle<Node>(nodes, next_uses, nullptr);
  std::uint64_t& before = fingerprints_[static_cast<std::size_t>(now_ - 1)];
  const bool converged = before == fingerprint_ && !initial_nodes_.empty();
  before = fingerprint_;
  return converged;
}

template <typename Node>
Placement<Node> BeladyPlanner::place(std::span<const Node> nodes, std::span<const std::int32_t> next_uses) {
  if (now_ == 0) forced_ = true;
  if (!forced_) throw std::logic_error("place in the middle of a warm-up round");
  Placement<Node> placement;
  settle<Node>(nodes, next_uses, &placement);
  return placement;
}

template <typename Node>
void BeladyPlanner::settle(std::span<const Node> nodes, std::span<const std::int32_t> next_uses,
                           Placement<Node>* placement) {
  if (now_ >= num_batches_) throw std::logic_error("more minibatches than the sequence has");
  waiting_[static_cast<std::size_t>(now_)] = std::vector<std::int32_t>();  // each hit below waits for its next use
  if (placement != nullptr) placement->addresses.resize(nodes.size());
  // Told apart without a branch, which nobody could predict.
  hits_.resize(nodes.size());
  misses_.resize(nodes.size());
  std::size_t num_hits = 0, num_misses = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&location_[static_cast<std::size_t>(nodes[i + kPrefetchDistance])]);
    }
    const std::int32_t location = location_[static_cast<std::size_t>(nodes[i])];
    const auto input = static_cast<std::int32_t>(i);
    hits_[num_hits] = {location, input};
    misses_[num_misses] = {nodes[i], input, next_uses[i]};
    num_hits += static_cast<std::size_t>(location != kAbsent);
    num_misses += static_cast<std::size_t>(location == kAbsent);
  }
  hits_.resize(num_hits);
  misses_.resize(num_misses);
  std::vector<std::int32_t> leaving;
  for (const auto [location, position] : hits_) {
    const auto input = static_cast<std::size_t>(position);
    const bool is_static = location < kAbsent;
    if (placement != nullptr) placement->addresses[input] = is_static ? -2 - location : num_static_ + location;
    if (is_static) continue;
    if (!forced_ || next_uses[input] < num_batches_) {
      wait(location, next_uses[input]);
    } else if (!starts_next_cycle(nodes[input])) {
      leaving.push_back(location);
    }
  }
  for (const std::int32_t slot : leaving) release(slot);

  radix_sort(misses_, sorted_misses_, bits_for(location_.size()),
             [](const Miss& m) { return static_cast<std::uint64_t>(m.node); });
  candidates_.clear();
  if (placement != nullptr) placement->disk_nodes.resize(misses_.size());
  for (std::size_t i = 0; i < misses_.size(); ++i) {
    const Miss& miss = misses_[i];
    const auto row = static_cast<std::int32_t>(i);
    if (placement != nullptr) {
      placement->disk_nodes[i] = static_cast<Node>(miss.node);
      placement->addresses[static_cast<std::size_t>(miss.input)] = num_static_ + capacity_ + row;
    }
    std::int32_t next_use = miss.next_use;
    if (forced_ && next_use >= num_batches_) {
      if (!starts_next_cycle(miss.node)) continue;
      next_use = kMust;
    }
    candidates_.push_back({next_use, row});
  }
  admit(placement == nullptr ? nullptr : &placement->admissions);
  ++now_;
}

// Nearest next use first: who is admitted is never evicted by a later candidate of the same minibatch, and the
// first one that finds no place ends it.
void BeladyPlanner::admit(std::vector<std::int32_t>* admissions) {
  radix_sort(candidates_, sorted_candidates_, bits_for(2 * static_cast<std::uint64_t>(num_batches_) + 1),
             [](const Candidate& c) { return static_cast<std::uint64_t>(c.next_use + 1); });
  if (admissions != nullptr) admissions->reserve(2 * candidates_.size());
  for (const Candidate& candidate : candidates_) {
    const std::int32_t slot = take_slot(candidate.next_use);
    if (slot == kAbsent) {
      if (candidate.next_use == kMust) throw std::logic_error("no slot for a row that the next cycle starts with");
      break;
    }
    occupy(slot, misses_[static_cast<std::size_t>(candidate.row)].node);
    if (candidate.next_use != kMust) wait(slot, candidate.next_use);
    if (admissions != nullptr) admissions->insert(admissions->end(), {candidate.row, slot});
  }
}

// The residents at the end of a round, with their first uses in the next.
void BeladyPlanner::collect_initial() {
  std::vector<std::pair<std::int64_t, std::int32_t>> residents;
  for (std::int32_t use = num_batches_; use < static_cast<std::int32_t>(waiting_.size()); ++use) {
    for (const std::int32_t slot : waiting_[static_cast<std::size_t>(use)]) {
      residents.emplace_back(node_of_slot_[static_cast<std::size_t>(slot)], use - num_batches_);
    }
  }
  std::sort(residents.begin(), residents.end());
  initial_nodes_.clear();
  initial_uses_.clear();
  std::fill(initial_.begin(), initial_.end(), 0);
  for (const auto& [node, use] : residents) {
    initial_nodes_.push_back(node);
    initial_uses_.push_back(use);
    initial_[static_cast<std::size_t>(node / 64)] |= std::uint64_t{1} << (node % 64);
  }
}

void BeladyPlanner::start_cycle() {
  if (forced_) throw std::logic_error("the last round has begun");
  if (now_ == num_batches_) collect_initial();
  for (std::int32_t slot = 0; slot < capacity_; ++slot) {
    if (node_of_slot_[static_cast<std::size_t>(slot)] >= 0) release(slot);
  }
  for (std::vector<std::int32_t>& slots : waiting_) slots = std::vector<std::int32_t>();
  free_slots_.clear();
  for (std::int32_t slot = capacity_; slot-- > static_cast<std::int32_t>(initial_nodes_.size());) {
    free_slots_.push_back(slot);
  }
  now_ = 0;
  furthest_ = 0;
  for (std::size_t slot = 0; slot < initial_nodes_.size(); ++slot) {
    occupy(static_cast<std::int32_t>(slot), initial_nodes_[slot]);
    wait(static_cast<std::int32_t>(slot), initial_uses_[slot]);
  }
}

std::vector<std::int32_t> BeladyPlanner::next_cycle_slots() const {
  if (!forced_ || now_ != num_batches_) throw std::logic_error("the last round is not complete");
  std::vector<std::int32_t> slots;
  std::vector<bool> taken(node_of_slot_.size(), false);
  for (const std::int64_t node : initial_nodes_) {
    const std::int32_t slot = location_[static_cast<std::size_t>(node)];
    if (slot < 0) throw std::logic_error("a row that the next cycle starts with is not resident");
    slots.push_back(slot);
    taken[static_cast<std::size_t>(slot)] = true;
  }
  for (std::int32_t slot = 0; slot < capacity_; ++slot) {
    if (!taken[static_cast<std::size_t>(slot)]) slots.push_back(slot);
  }
  return slots;
}

template void count_nodes(std::span<std::int32_t>, std::span<const std::int32_t>);
template void count_nodes(std::span<std::int32_t>, std::span<const std::int64_t>);
template std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int32_t>,
                                                      std::int32_t);
template std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t>, std::span<const std::int64_t>,
                                                      std::int32_t);
template bool BeladyPlanner::warm_up(std::span<const std::int32_t>, std::span<const std::int32_t>);
template bool BeladyPlanner::warm_up(std::span<const std::int64_t>, std::span<const std::int32_t>);
template Placement<std::int32_t> BeladyPlanner::place(std::span<const std::int32_t>, std::span<const std::int32_t>);
template Placement<std::int64_t> BeladyPlanner::place(std::span<const std::int64_t>, std::span<const std::int32_t>);

}  // namespace diskgnn
