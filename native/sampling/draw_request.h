// What a minibatch depends on beside the graph: its seeds, its fanouts, and what names its draws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
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

// Edges of one type that are not drawn, all those between two nodes.
class ExcludedEdges {
 public:
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
      }
      sources_.push_back(sources[i]);
    }
  }

  bool empty() const { return sources_.empty(); }

  // Ascending.
  std::span<const std::int64_t> sources_of(std::int64_t destination) const {
    const auto found = std::lower_bound(destinations_.begin(), destinations_.end(), destination);
    if (found == destinations_.end() || *found != destination) return {};
    const auto i = static_cast<std::size_t>(found - destinations_.begin());
    const std::size_t end = i + 1 < starts_.size() ? starts_[i + 1] : sources_.size();
    return std::span(sources_).subspan(starts_[i], end - starts_[i]);
  }

 private:
  std::vector<std::int64_t> destinations_;  // distinct, ascending
  std::vector<std::size_t> starts_;         // of each one's in `sources_`
  std::vector<std::int64_t> sources_;
};

struct DrawRequest {
  std::vector<std::vector<std::int64_t>> seeds;  // by node type
  // By node type, one per seed: nothing later is drawn for it. Then each seed grows a tree of its own, and a node may
  // be in several. Empty: times do not matter.
  std::vector<std::vector<std::int64_t>> seed_times;
  std::vector<std::int32_t> fanouts;  // [layers, edge types], from the seeds outwards; -1 takes all
  DrawKey key;
  std::vector<ExcludedEdges> excluded;  // by edge type; or empty
  bool weighted = false;                // where an edge type has weights
  bool latest = false;                  // where an edge type or its sources have times: the latest, no chance
  std::vector<bool> positions;          // by edge type: blocks say where their edges lie; or empty
  bool expand_once = false;             // a node draws in the layer after the one that found it, and in no other

  bool has_trees() const { return !seed_times.empty(); }
};

// Whether every edge of a type has to be looked at: not all may be drawn, or not all alike. The type has times if its
// edges or its sources do.
inline bool scans_lists(const DrawRequest& request, bool has_times, bool has_weights) {
  return (request.has_trees() && has_times) || (request.weighted && has_weights);
}

}  // namespace diskgnn
