// What a minibatch depends on beside the graph: its seeds, its fanouts, and what names its draws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "draws.h"

namespace diskgnn {

// What names one minibatch's random draws; with (layer, edge type, node) it names those of one node.
struct DrawKey {
  std::uint64_t sequence;                                   // (seed, split, epoch), mixed
  std::uint64_t minibatch;                                  // position in the epoch
  std::optional<std::uint64_t> slice_start = std::nullopt;  // draws are coordinated, and these two don't matter
};

// Names the independent draws of one node. Edge type 0 adds nothing: graphs of one type draw what they always drew.
constexpr std::uint64_t draw_state(DrawKey key, std::size_t layer, std::size_t relation, std::int64_t node) {
  const std::uint64_t place = static_cast<std::uint64_t>(layer) + (static_cast<std::uint64_t>(relation) << 32);
  return combine(combine(combine(key.sequence, key.minibatch), place), static_cast<std::uint64_t>(node));
}

// Edges of one type that are not drawn, all those between two nodes. What is given twice counts once.
class ExcludedEdges {
 public:
  // Bytes of an edge, at most: its source, and of its destination the number, the place of its list and a bucket.
  static constexpr std::size_t kMostBytes = 32;

  ExcludedEdges() = default;
  ExcludedEdges(std::span<const std::int64_t> sources, std::span<const std::int64_t> destinations) {
    std::vector<std::size_t> order(sources.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return destinations[a] != destinations[b] ? destinations[a] < destinations[b] : sources[a] < sources[b];
    });
    for (const std::size_t i : order) {
      if (destinations_.empty() || destinations_.back() != destinations[i]) {
        destinations_.push_back(destinations[i]);
        starts_.push_back(sources_.size());
      } else if (sources_.back() == sources[i]) {
        continue;
      }
      sources_.push_back(sources[i]);
    }
    for (auto* const numbers : {&sources_, &destinations_}) numbers->shrink_to_fit();
    starts_.shrink_to_fit();
    find_buckets();
  }

  bool empty() const { return sources_.empty(); }
  std::size_t size() const { return sources_.size(); }

  // (sources, destinations).
  std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> edges() const {
    std::vector<std::int64_t> destinations;
    destinations.reserve(sources_.size());
    for (std::size_t i = 0; i < destinations_.size(); ++i) {
      destinations.resize(i + 1 < starts_.size() ? starts_[i + 1] : sources_.size(), destinations_[i]);
    }
    return {sources_, std::move(destinations)};
  }

  // Ascending.
  std::span<const std::int64_t> sources_of(std::int64_t destination) const {
    const std::uint64_t bucket = static_cast<std::uint64_t>(destination) >> shift_;
    if (buckets_.empty() || bucket >= buckets_.size() - 1) return {};
    const auto end_of_bucket = destinations_.begin() + static_cast<std::ptrdiff_t>(buckets_[bucket + 1]);
    const auto found = std::lower_bound(destinations_.begin() + static_cast<std::ptrdiff_t>(buckets_[bucket]),
                                        end_of_bucket, destination);
    if (found == end_of_bucket || *found != destination) return {};
    const auto i = static_cast<std::size_t>(found - destinations_.begin());
    const std::size_t end = i + 1 < starts_.size() ? starts_[i + 1] : sources_.size();
    return std::span(sources_).subspan(starts_[i], end - starts_[i]);
  }

  bool contains(std::int64_t source, std::int64_t destination) const {
    const std::span<const std::int64_t> sources = sources_of(destination);
    return std::binary_search(sources.begin(), sources.end(), source);
  }

 private:
  // Nodes are asked for in no order: without buckets, each would cost as many cache misses as a search has steps.
  void find_buckets() {
    if (destinations_.empty()) return;
    if (destinations_.front() < 0)
      throw std::invalid_argument("excluded: expected numbers of nodes, found one below 0");
    const auto last = static_cast<std::uint64_t>(destinations_.back());
    while ((last >> shift_) > destinations_.size()) ++shift_;
    buckets_.reserve((last >> shift_) + 2);
    for (std::size_t i = 0; i < destinations_.size(); ++i) {
      const std::uint64_t bucket = static_cast<std::uint64_t>(destinations_[i]) >> shift_;
      while (buckets_.size() <= bucket) buckets_.push_back(i);
    }
    buckets_.push_back(destinations_.size());
  }

  std::vector<std::int64_t> destinations_;  // distinct, ascending
  std::vector<std::size_t> starts_;         // of each one's in `sources_`
  std::vector<std::int64_t> sources_;
  unsigned shift_ = 0;
  std::vector<std::size_t> buckets_;  // where destinations of i << shift_ and above begin; about one for each of them
};

// What is not drawn from one list: sources, ascending.
struct ExcludedSources {
  std::span<const std::int64_t> own, held_out;

  bool empty() const { return own.empty() && held_out.empty(); }

  bool contains(std::int64_t source) const {
    return std::binary_search(own.begin(), own.end(), source) ||
           std::binary_search(held_out.begin(), held_out.end(), source);
  }
};

// What times may be, in [first, last].
struct TimeRange {
  std::int64_t first = std::numeric_limits<std::int64_t>::min(), last = std::numeric_limits<std::int64_t>::max();

  bool empty() const { return first > last; }

  // Up to `last`. With a window, later than `last` minus that and later than `start`, and so nothing whose time is
  // missing, which is stored as the smallest number.
  static TimeRange until(std::int64_t last, std::optional<std::int64_t> window, std::int64_t start) {
    TimeRange range{std::numeric_limits<std::int64_t>::min(), last};
    if (!window) return range;
    constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min() + 1;
    if (*window <= 0 || start >= last) {
      return {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
    }
    range.first = std::max(start + 1, last < kFirst + (*window - 1) ? kFirst : last - (*window - 1));
    return range;
  }
};

// Of a seed: nothing later than `last` is drawn, and of edge types that have a window, only what is later than `start`.
struct SeedTime {
  std::int64_t last, start;
};

struct DrawRequest {
  std::vector<std::vector<std::int64_t>> seeds;  // by node type
  // By node type, one per seed: nothing later is drawn for it. Then each seed grows a tree of its own, and a node may
  // be in several. Empty: times do not matter.
  std::vector<std::vector<std::int64_t>> seed_times;
  // By node type, one per seed: of edge types that have a window, nothing is drawn but what is later than this; or
  // empty.
  std::vector<std::vector<std::int64_t>> seed_starts;
  // By edge type: of a seed, only edges are drawn that are later than its time minus this; or empty. Not above 0:
  // none are.
  std::vector<std::optional<std::int64_t>> windows;
  std::vector<std::int32_t> fanouts;  // [layers, edge types], from the seeds outwards; -1 takes all
  DrawKey key;
  std::vector<ExcludedEdges> excluded;  // by edge type: not in this minibatch; or empty
  // By edge type: not in any minibatch, which share them; or empty.
  std::vector<std::shared_ptr<const ExcludedEdges>> held_out;
  bool weighted = false;        // where an edge type has weights
  bool latest = false;          // where an edge type or its sources have times: the latest, no chance
  std::vector<bool> positions;  // by edge type: blocks say where their edges lie; or empty
  bool expand_once = false;     // a node draws in the layer after the one that found it, and in no other

  bool has_trees() const { return !seed_times.empty(); }

  // What may be drawn of an edge type for a seed of this time.
  TimeRange times_for(SeedTime time, std::size_t number) const {
    return TimeRange::until(time.last, windows.empty() ? std::nullopt : windows[number], time.start);
  }

  bool excludes(std::size_t number) const {
    return (!excluded.empty() && !excluded[number].empty()) ||
           (!held_out.empty() && held_out[number] != nullptr && !held_out[number]->empty());
  }

  ExcludedSources excluded_of(std::size_t number, std::int64_t node) const {
    ExcludedSources found;
    if (!excluded.empty()) found.own = excluded[number].sources_of(node);
    if (!held_out.empty() && held_out[number] != nullptr) found.held_out = held_out[number]->sources_of(node);
    return found;
  }
};

// Whether edges of a type are chosen from lists one by one: not all may be drawn, or not all alike, or slices of lists
// in the order of time are no slices of the circle of hashes. The type has times if its edges or its sources do.
inline bool scans_lists(const DrawRequest& request, bool has_times, bool has_weights, bool by_time) {
  return (request.has_trees() && has_times) || (request.weighted && has_weights) ||
         (by_time && request.key.slice_start.has_value());
}

}  // namespace diskgnn
