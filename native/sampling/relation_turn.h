// One edge type's turn in one layer of a minibatch: draws from lists of in-neighbours in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "draws.h"
#include "files/page_array.h"
#include "graph/neighbor_order.h"
#include "sampling/draw_request.h"
#include "sampling/edge_choice.h"
#include "sampling/independent_draws.h"
#include "sampling/relabel_table.h"
#include "sampling/relation.h"
#include "sampling/sampled_minibatch.h"

namespace diskgnn {

// How far ahead memory is asked for: the topology is far larger than the caches, so latency is the cost.
constexpr std::size_t kPrefetchDistance = 64;

// In-neighbours by node, some of them in a cache.
template <typename Index>
class Lists {
 public:
  explicit Lists(const Relation& relation)
      : indptr_(relation.indptr),
        indices_(std::get<std::span<const Index>>(relation.indices)),
        cache_starts_(relation.cache_starts) {
    if (!cache_starts_.empty()) cached_ = std::get<std::span<const Index>>(relation.cached_neighbors);
  }

  void prefetch_offsets(std::int64_t node) const { __builtin_prefetch(&indptr_[static_cast<std::size_t>(node)]); }

  std::int64_t begin(std::int64_t node) const { return indptr_[static_cast<std::size_t>(node)]; }

  std::span<const Index> of(std::int64_t node) const {
    const auto v = static_cast<std::size_t>(node);
    const std::int64_t begin = indptr_[v], end = indptr_[v + 1];
    if (begin < 0 || begin > end || end > static_cast<std::int64_t>(indices_.size())) {
      throw std::out_of_range("indptr is damaged at node " + std::to_string(node));
    }
    const auto degree = static_cast<std::size_t>(end - begin);
    const std::int64_t cached = cache_starts_.empty() ? -1 : cache_starts_[v];
    if (cached < 0) return indices_.subspan(static_cast<std::size_t>(begin), degree);
    if (cached > static_cast<std::int64_t>(cached_.size()) - (end - begin)) {
      throw std::out_of_range("the neighbour cache is damaged");
    }
    return cached_.subspan(static_cast<std::size_t>(cached), degree);
  }

 private:
  const std::span<const std::int64_t> indptr_;
  const std::span<const Index> indices_;
  const std::span<const std::int64_t> cache_starts_;
  std::span<const Index> cached_;
};

// What a thread keeps: fresh memory for every minibatch is a third of the time, spent in page faults.
template <typename Key>
struct Scratch {
  std::vector<RelabelTable<Key>> tables;  // by node type
  std::vector<PageArray<Key>> nodes;      // by node type
  std::vector<std::int64_t> positions;
  std::vector<const void*> places;
  PageArray<Key> neighbors;
  std::vector<Candidate> slots;
};

// Inlined, its address would be looked up for every edge.
template <typename Key>
[[gnu::noinline]] Scratch<Key>& scratch_of_this_thread() {
  thread_local Scratch<Key> scratch;
  return scratch;
}

// Slices are short, and calling memcpy takes longer than copying them.
template <typename From, typename To>
void copy_short(const From* from, std::size_t count, To* to) {
  constexpr std::size_t kAtOnce = 4;
  if (!std::is_same_v<From, To> || count < kAtOnce) {
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
    return;
  }
  // The last ones may overlap with those before.
  for (std::size_t i = 0; i + kAtOnce < count; i += kAtOnce) std::memcpy(to + i, from + i, kAtOnce * sizeof(To));
  std::memcpy(to + count - kAtOnce, from + count - kAtOnce, kAtOnce * sizeof(To));
}

// One edge type's turn in one layer: draws for nodes [first, count) of the destination type. Leaves sources in
// scratch.neighbors, as ids without trees, and where each destination's begin in block.indptr, after those that are
// there already: of nodes before `first`.
template <typename Id, bool kTrees, typename Index>
class Turn {
  using Keys = NodeKeys<Id, kTrees>;
  using Key = typename Keys::Key;

 public:
  Turn(const TypedTopology& topology, const DrawRequest& request, std::size_t number, std::size_t layer,
       std::size_t first, std::size_t count, Scratch<Key>& scratch, SampledBlock& block)
      : relation_(topology.relations[number]),
        lists_(relation_),
        request_(request),
        number_(number),
        layer_(layer),
        fanout_(request.fanouts[layer * topology.relations.size() + number]),
        first_(first),
        count_(count),
        num_destinations_(topology.num_nodes[static_cast<std::size_t>(relation_.destination)]),
        nodes_(scratch.nodes[static_cast<std::size_t>(relation_.destination)]),
        scratch_(scratch),
        block_(block),
        num_known_(static_cast<std::size_t>(block.indptr.back())),
        wants_positions_(!request.positions.empty() && request.positions[number]) {}

  void draw_independently() {
    auto& [tables, nodes, positions, places, neighbors, slots] = scratch_;
    places.clear();
    for (std::size_t i = first_; i < count_; ++i) {
      if (i + kPrefetchDistance < count_) lists_.prefetch_offsets(node(i + kPrefetchDistance));
      const std::int64_t v = node(i);
      const std::span<const Index> list = lists_.of(v);
      positions.clear();
      draw_positions(draw_state(request_.key, layer_, number_, nodes_[i]), static_cast<std::int64_t>(list.size()),
                     fanout_, positions);
      for (const std::int64_t position : positions) places.push_back(list.data() + position);
      if (wants_positions_) {
        for (const std::int64_t position : positions) block_.positions.push_back(lists_.begin(v) + position);
      }
      end_list(places.size());
    }
    neighbors.resize(places.size());
    for (std::size_t e = 0; e < places.size(); ++e) {
      if (e + kPrefetchDistance < places.size()) __builtin_prefetch(places[e + kPrefetchDistance]);
      neighbors[e] = *static_cast<const Index*>(places[e]);
    }
  }

  void draw_slices() {
    const std::uint64_t slice_start = *request_.key.slice_start;
    scratch_.neighbors.clear();
    // Room for all of them at once: only what is drawn is written.
    if (fanout_ >= 0) scratch_.neighbors.reserve((count_ - first_) * static_cast<std::size_t>(fanout_));
    for (std::size_t i = first_; i < count_; ++i) {
      if (i + 2 * kPrefetchDistance < count_) lists_.prefetch_offsets(node(i + 2 * kPrefetchDistance));
      if (i + kPrefetchDistance < count_) {
        // A slice is not as long as a cache line, but may begin at the end of one.
        const std::span<const Index> ahead = lists_.of(node(i + kPrefetchDistance));
        const std::size_t expected = below(slice_start, ahead.size());
        __builtin_prefetch(ahead.data() + expected);
        __builtin_prefetch(ahead.data() + std::min(expected + static_cast<std::size_t>(fanout_), ahead.size()));
      }
      const std::int64_t v = node(i);
      append_slice(v, lists_.of(v));
      end_list(scratch_.neighbors.size());
    }
  }

  // Draws from what may be drawn, where that is not every edge.
  void choose(const TypedTopology& topology, bool scans, bool excludes, std::span<const SeedTime> times) {
    const auto source = static_cast<std::size_t>(relation_.source);
    const bool is_timed = scans && request_.has_trees();
    const ChoiceRules rules{topology.num_nodes[source],
                            is_timed ? topology.node_times[source] : std::span<const std::int64_t>{},
                            scans && request_.latest, request_.key.slice_start, relation_.by_time};
    const bool has_times = is_timed && !relation_.times.empty();
    const bool has_weights = request_.weighted && !relation_.weights.empty();
    scratch_.neighbors.clear();
    for (std::size_t i = first_; i < count_; ++i) {
      if (i + 2 * kPrefetchDistance < count_) lists_.prefetch_offsets(node(i + 2 * kPrefetchDistance));
      if (i + kPrefetchDistance < count_) __builtin_prefetch(lists_.of(node(i + kPrefetchDistance)).data());
      const std::int64_t v = node(i), begin = lists_.begin(v);
      const std::span<const Index> list = lists_.of(v);
      ListRules rules_of_list{draw_state(request_.key, layer_, number_, nodes_[i]), {}, {}};
      if (excludes) rules_of_list.excluded = request_.excluded_of(number_, v);
      if (!scans && rules_of_list.excluded.empty()) {
        append_plainly(v, list, rules_of_list.state);
      } else {
        if (is_timed) {
          rules_of_list.times =
              request_.times_for(times[static_cast<std::size_t>(Keys::tree_of(nodes_[i], num_destinations_))], number_);
        }
        const EdgeRun<Index> run{list, has_times ? relation_.times.data() + begin : nullptr,
                                 has_weights ? relation_.weights.data() + begin : nullptr, begin, 0};
        append_chosen(rules, rules_of_list, run);
      }
      end_list(scratch_.neighbors.size());
    }
  }

 private:
  void end_list(std::size_t num_drawn) {
    const std::size_t num_edges = num_known_ + num_drawn;
    if (num_edges > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) throw_too_many_edges();
    block_.indptr.push_back(static_cast<std::int32_t>(num_edges));
  }

  std::int64_t node(std::size_t i) const { return Keys::node_of(nodes_[i], num_destinations_); }

  void append(std::int64_t begin, std::span<const Index> list, std::size_t first, std::size_t count) {
    PageArray<Key>& neighbors = scratch_.neighbors;
    const std::size_t filled = neighbors.size();
    neighbors.resize(filled + count);
    copy_short(list.data() + first, count, neighbors.data() + filled);
    if (!wants_positions_) return;
    for (std::size_t i = 0; i < count; ++i) {
      block_.positions.push_back(begin + static_cast<std::int64_t>(first + i));
    }
  }

  void append_slice(std::int64_t v, std::span<const Index> list) {
    const std::int64_t begin = lists_.begin(v);
    const auto drawn = static_cast<std::size_t>(fanout_);
    if (fanout_ < 0 || list.size() <= drawn) return append(begin, list, 0, list.size());
    const std::size_t first = first_at_or_after(list, *request_.key.slice_start);
    const std::size_t before_end = std::min(drawn, list.size() - first);
    append(begin, list, first, before_end);
    append(begin, list, 0, drawn - before_end);
  }

  void append_plainly(std::int64_t v, std::span<const Index> list, std::uint64_t state) {
    if (request_.key.slice_start) return append_slice(v, list);
    scratch_.positions.clear();
    draw_positions(state, static_cast<std::int64_t>(list.size()), fanout_, scratch_.positions);
    for (const std::int64_t position : scratch_.positions) {
      append(lists_.begin(v), list, static_cast<std::size_t>(position), 1);
    }
  }

  void append_chosen(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& whole) {
    const EdgeRun<Index> run = in_range(rules, list, whole);
    const std::size_t degree = run.sources.size();
    const std::size_t capacity = fanout_ < 0 ? degree : std::min(degree, static_cast<std::size_t>(fanout_));
    scratch_.slots.resize(capacity);
    Choice choice(scratch_.slots, 0);
    diskgnn::choose(rules, list, run, choice);
    const std::span<Candidate> drawn = std::span(scratch_.slots).first(choice.filled());
    sort_by_position(drawn);
    for (const Candidate& each : drawn) {
      scratch_.neighbors.push_back(static_cast<Key>(each.source));
      if (wants_positions_) block_.positions.push_back(each.position);
    }
  }

  const Relation& relation_;
  const Lists<Index> lists_;
  const DrawRequest& request_;
  const std::size_t number_, layer_;
  const int fanout_;
  const std::size_t first_, count_;
  const std::int64_t num_destinations_;
  const PageArray<Key>& nodes_;
  Scratch<Key>& scratch_;
  SampledBlock& block_;
  const std::size_t num_known_;  // edges of nodes before `first`
  const bool wants_positions_;
};

}  // namespace diskgnn
