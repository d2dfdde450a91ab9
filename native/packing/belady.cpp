#include "packing/belady.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

namespace diskgnn {
namespace {

// Beside these, a location is an address + 1.
constexpr std::int32_t kAbsent = 0;
constexpr std::int32_t kInitial = -1;  // resident when the cycle starts, in a slot that is not known yet
constexpr std::size_t kPrefetchDistance = 64;
constexpr int kMaxRounds = 8;  // until the residents are those of the round before

std::size_t unsign(std::int64_t value) { return static_cast<std::size_t>(value); }

// One cycle of MIN, in numbers of rows.
class Round {
 public:
  Round(const ArcCounts& arcs, std::int64_t capacity, const std::vector<std::int32_t>& initial)
      : arcs_(arcs), capacity_(capacity), num_batches_(initial.size()), resident_(initial), hits_(initial.size()) {
    resident_.resize(2 * num_batches_, 0);
    for (const std::int32_t rows : initial) total_ += rows;
    furthest_ = num_batches_;
  }

  // MIN as it is. Returns the residents at the end, by their first use in the next cycle.
  std::vector<std::int32_t> play() {
    for (std::size_t t = 0; t < num_batches_; ++t) {
      leave(t);
      for_each_arc(t, [this](std::size_t use, std::int32_t rows) { enter(use, rows); });
      evict();
    }
    return {resident_.begin() + static_cast<std::ptrdiff_t>(num_batches_), resident_.end()};
  }

  // MIN that has to end with `initial` resident again: by first use, `skipped` arcs of those that go on into the next
  // cycle are dropped at once, the others never. Returns the hits of each minibatch.
  std::vector<std::int32_t> play_forced(std::vector<std::int32_t> skipped) {
    for (std::size_t t = 0; t < num_batches_; ++t) {
      leave(t);
      for_each_arc(t, [&](std::size_t use, std::int32_t rows) {
        if (use < num_batches_) return enter(use, rows);
        std::int32_t& to_skip = skipped[use - num_batches_];
        const std::int32_t skip = std::min(to_skip, rows);
        to_skip -= skip;
        total_ += rows - skip;  // and never in a list, so that nothing evicts them
      });
      evict();
    }
    return hits_;
  }

 private:
  template <typename Visit>
  void for_each_arc(std::size_t t, Visit visit) const {
    for (std::size_t i = unsign(arcs_.bounds[t]); i < unsign(arcs_.bounds[t + 1]); ++i) {
      visit(unsign(arcs_.counts[i].use), arcs_.counts[i].rows);
    }
  }

  void leave(std::size_t t) {
    hits_[t] = resident_[t];
    total_ -= resident_[t];
    resident_[t] = 0;
  }

  void enter(std::size_t use, std::int32_t rows) {
    resident_[use] += rows;
    total_ += rows;
    furthest_ = std::max(furthest_, use + 1);
  }

  void evict() {
    while (total_ > capacity_) {
      if (furthest_ == 0) throw std::logic_error("more rows must stay than there are slots");
      std::int32_t& rows = resident_[furthest_ - 1];
      const auto out = static_cast<std::int32_t>(std::min<std::int64_t>(rows, total_ - capacity_));
      rows -= out;
      total_ -= out;
      if (rows == 0) --furthest_;
    }
  }

  const ArcCounts& arcs_;
  std::int64_t capacity_;
  std::size_t num_batches_;
  std::vector<std::int32_t> resident_;  // [2B] rows by their next use
  std::vector<std::int32_t> hits_;      // [B]
  std::int64_t total_ = 0;
  std::size_t furthest_;  // no resident that may be evicted is needed at or after this
};

struct Ends {
  std::vector<std::int32_t> accesses;    // [B] arcs that end in each minibatch
  std::vector<std::int32_t> first_uses;  // [B] those of them that come from the cycle before
};

Ends count_ends(const ArcCounts& arcs) {
  const std::size_t num_batches = arcs.bounds.size() - 1;
  Ends ends{std::vector<std::int32_t>(num_batches), std::vector<std::int32_t>(num_batches)};
  for (const UseCount& arc : arcs.counts) {
    const std::size_t use = unsign(arc.use);
    ends.accesses[use < num_batches ? use : use - num_batches] += arc.rows;
    if (use >= num_batches) ends.first_uses[use - num_batches] += arc.rows;
  }
  return ends;
}

}  // namespace

std::vector<std::int32_t> belady_misses(const ArcCounts& arcs, std::int64_t capacity, bool from_empty) {
  const Ends ends = count_ends(arcs);
  const std::size_t num_batches = ends.accesses.size();
  std::vector<std::int32_t> initial(num_batches, 0);
  for (int round = 0; round < kMaxRounds && !from_empty; ++round) {
    std::vector<std::int32_t> last = Round(arcs, capacity, initial).play();
    if (last == initial) break;
    initial = std::move(last);
  }
  for (;;) {
    std::vector<std::int32_t> skipped(num_batches), misses(num_batches), used(num_batches);
    for (std::size_t t = 0; t < num_batches; ++t) skipped[t] = ends.first_uses[t] - initial[t];
    const std::vector<std::int32_t> hits = Round(arcs, capacity, initial).play_forced(std::move(skipped));
    for (std::size_t t = 0; t < num_batches; ++t) {
      misses[t] = ends.accesses[t] - hits[t];
      used[t] = std::max(0, ends.first_uses[t] - misses[t]);
    }
    if (used == initial) return misses;
    initial = std::move(used);  // rows that are evicted before their first use need not be there
  }
}

BeladyPlanner::BeladyPlanner(std::span<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
                             std::span<const std::int32_t> misses, std::span<const std::int32_t> first_uses)
    : location_(location),
      num_static_(num_static),
      capacity_(capacity),
      dropped_(2 * misses.size() + 1, 0),
      to_find_(misses.size()) {
  for (std::size_t t = 0; t < misses.size(); ++t) {
    dropped_[1 + t] = std::max(0, misses[t] - first_uses[t]);
    dropped_[1 + t + misses.size()] = std::min(misses[t], first_uses[t]);
    to_find_[t] = std::max(0, first_uses[t] - misses[t]);
    num_to_find_ += to_find_[t];
  }
  if (num_to_find_ > capacity_) throw std::invalid_argument("fewer slots than the misses ask for");
}

template <typename Node>
bool BeladyPlanner::find_initial(std::span<const Node> nodes, std::span<const std::int32_t> next_uses) {
  if (started_) throw std::logic_error("the cycle has begun");
  const auto num_batches = static_cast<std::int32_t>(to_find_.size());
  admitted_.clear();
  for (std::size_t i = nodes.size(); i-- > 0 && num_to_find_ > 0;) {
    if (next_uses[i] < num_batches) continue;
    std::int32_t& left = to_find_[unsign(next_uses[i] - num_batches)];
    if (left == 0) continue;
    --left;
    --num_to_find_;
    admitted_.push_back(static_cast<std::int32_t>(i));
  }
  for (std::size_t i = 0; i < admitted_.size(); ++i) {
    if (i + kPrefetchDistance < admitted_.size()) {
      __builtin_prefetch(&location_[unsign(nodes[unsign(admitted_[i + kPrefetchDistance])])], 1);
    }
    location_[unsign(nodes[unsign(admitted_[i])])] = kInitial;
  }
  num_initial_ += admitted_.size();
  return num_to_find_ == 0;
}

const std::vector<std::int64_t>& BeladyPlanner::initial_cpu_nodes() {
  if (!started_) start_cycle();
  return initial_nodes_;
}

void BeladyPlanner::start_cycle() {
  if (num_to_find_ != 0) throw std::logic_error("not all of the initial rows are found");
  started_ = true;
  initial_nodes_.reserve(num_initial_);
  for (std::size_t node = 0; node < location_.size() && initial_nodes_.size() < num_initial_; ++node) {
    if (location_[node] != kInitial) continue;
    location_[node] = num_static_ + static_cast<std::int32_t>(initial_nodes_.size()) + 1;
    initial_nodes_.push_back(static_cast<std::int64_t>(node));
  }
  free_slots_.reserve(unsign(capacity_));
  for (std::int32_t slot = capacity_; slot-- > static_cast<std::int32_t>(initial_nodes_.size());) {
    free_slots_.push_back(slot);
  }
}

template <typename Node>
Placement<Node> BeladyPlanner::place(std::span<const Node> nodes, std::span<const std::int32_t> order,
                                     std::span<const std::int32_t> next_uses) {
  if (!started_) start_cycle();
  Placement<Node> placement;
  placement.addresses.resize(nodes.size());
  placement.disk_nodes.resize(nodes.size());
  leaving_.resize(nodes.size());
  admitted_.resize(nodes.size());
  const std::span<std::int32_t> addresses = placement.addresses, location_of = location_, dropped = dropped_;
  const std::int32_t first_row = num_static_ + capacity_;
  std::size_t num_rows = 0, num_leaving = 0, num_admitted = 0;
  // Everything is written and the counters decide what stays: nobody could predict the branches.
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i + kPrefetchDistance < nodes.size()) {
      __builtin_prefetch(&location_of[unsign(nodes[i + kPrefetchDistance])], 1);
      __builtin_prefetch(&addresses[unsign(order[i + kPrefetchDistance])], 1);
    }
    const std::int32_t location = location_of[unsign(nodes[i])];
    const bool hit = location != kAbsent;
    std::int32_t& to_drop = dropped[unsign(next_uses[i] + 1)];
    const bool keep = to_drop == 0;
    to_drop -= static_cast<std::int32_t>(!keep);
    const auto row = static_cast<std::int32_t>(num_rows);
    const std::int32_t hit_mask = -static_cast<std::int32_t>(hit);
    addresses[unsign(order[i])] = ((location - 1) & hit_mask) | ((first_row + row) & ~hit_mask);
    placement.disk_nodes[num_rows] = nodes[i];
    admitted_[num_admitted] = row;
    leaving_[num_leaving] = static_cast<std::int32_t>(i);
    num_rows += static_cast<std::size_t>(!hit);
    num_admitted += static_cast<std::size_t>(!hit & keep);
    num_leaving += static_cast<std::size_t>(hit & !keep);
  }
  placement.disk_nodes.resize(num_rows);
  for (std::size_t i = 0; i < num_leaving; ++i) {
    if (i + kPrefetchDistance < num_leaving) {
      __builtin_prefetch(&location_[unsign(nodes[unsign(leaving_[i + kPrefetchDistance])])], 1);
    }
    std::int32_t& location = location_[unsign(nodes[unsign(leaving_[i])])];
    free_slots_.push_back(location - 1 - num_static_);
    location = kAbsent;
  }
  if (num_admitted > free_slots_.size()) throw std::logic_error("more rows are kept than there are slots");
  placement.admissions.resize(2 * num_admitted);
  for (std::size_t i = 0; i < num_admitted; ++i) {
    if (i + kPrefetchDistance < num_admitted) {
      __builtin_prefetch(&location_[unsign(placement.disk_nodes[unsign(admitted_[i + kPrefetchDistance])])], 1);
    }
    const std::int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    location_[unsign(placement.disk_nodes[unsign(admitted_[i])])] = num_static_ + slot + 1;
    placement.admissions[2 * i] = admitted_[i];
    placement.admissions[2 * i + 1] = slot;
  }
  return placement;
}

std::vector<std::int32_t> BeladyPlanner::next_cycle_slots() const {
  std::vector<std::int32_t> slots;
  slots.reserve(unsign(capacity_));
  std::vector<bool> taken(unsign(capacity_), false);
  for (const std::int64_t node : initial_nodes_) {
    const std::int32_t slot = location_[unsign(node)] - 1 - num_static_;
    if (slot < 0) throw std::logic_error("a row that the next cycle starts with is not resident");
    slots.push_back(slot);
    taken[unsign(slot)] = true;
  }
  for (std::int32_t slot = 0; slot < capacity_; ++slot) {
    if (!taken[unsign(slot)]) slots.push_back(slot);
  }
  return slots;
}

template bool BeladyPlanner::find_initial(std::span<const std::int32_t>, std::span<const std::int32_t>);
template bool BeladyPlanner::find_initial(std::span<const std::int64_t>, std::span<const std::int32_t>);
template Placement<std::int32_t> BeladyPlanner::place(std::span<const std::int32_t>, std::span<const std::int32_t>,
                                                      std::span<const std::int32_t>);
template Placement<std::int64_t> BeladyPlanner::place(std::span<const std::int64_t>, std::span<const std::int32_t>,
                                                      std::span<const std::int32_t>);

}  // namespace diskgnn
