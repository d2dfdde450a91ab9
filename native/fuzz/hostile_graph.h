// A graph that a stranger made, and what is asked of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "fuzz/entry.h"
#include "sampling/draw_request.h"
#include "sampling/relation.h"

namespace diskgnn {

inline constexpr std::size_t kMostNodes = 32, kMostEdges = 96, kMostSeeds = 6, kMostLayers = 3;

struct HostileRelation {
  std::int32_t source, destination;
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> narrow;  // indices: these,
  std::vector<std::int64_t> wide;    // or these
  std::vector<float> weights;
  std::vector<std::int64_t> times;
  bool by_time;  // as it is said: nobody sorted them

  std::size_t num_edges() const { return narrow.size() + wide.size(); }
  bool is_wide() const { return !wide.empty(); }
  NodeSpan indices() const { return is_wide() ? NodeSpan(std::span(wide)) : NodeSpan(std::span(narrow)); }
  std::int64_t index(std::size_t edge) const { return is_wide() ? wide[edge] : narrow[edge]; }
};

struct HostileGraph {
  std::vector<std::int64_t> num_nodes;
  std::vector<std::vector<std::int64_t>> node_times;
  std::vector<HostileRelation> relations;
  bool is_wide = false;

  TypedTopology topology() const {
    TypedTopology topology{num_nodes, {}, {}};
    for (const auto& times : node_times) topology.node_times.push_back(times);
    for (const HostileRelation& each : relations) {
      topology.relations.push_back(
          {each.source, each.destination, each.indptr, each.indices(), each.weights, each.times, {}, {}, each.by_time});
    }
    return topology;
  }
};

// Offsets from node to node; as whoever opens a graph requires, they begin with 0 and end with the number of edges.
inline std::vector<std::int64_t> take_indptr(Input& input, std::size_t num_nodes, std::size_t num_edges) {
  std::vector<std::int64_t> indptr(num_nodes + 1, 0);
  for (std::size_t i = 1; i < num_nodes; ++i) indptr[i] = input.take_far();
  indptr.back() = static_cast<std::int64_t>(num_edges);
  return indptr;
}

inline std::vector<std::int64_t> take_times(Input& input, std::size_t count) {
  std::vector<std::int64_t> times(count);
  for (std::int64_t& time : times) time = input.take_far();
  return times;
}

inline HostileGraph take_graph(Input& input) {
  HostileGraph graph;
  const std::size_t num_types = 1 + input.take_below(2), num_relations = 1 + input.take_below(2);
  for (std::size_t type = 0; type < num_types; ++type) {
    graph.num_nodes.push_back(1 + static_cast<std::int64_t>(input.take_below(kMostNodes)));
    const bool has_times = input.take_below(2) == 1;
    graph.node_times.push_back(take_times(input, has_times ? static_cast<std::size_t>(graph.num_nodes[type]) : 0));
  }
  for (std::size_t number = 0; number < num_relations; ++number) {
    HostileRelation relation{};
    relation.source = static_cast<std::int32_t>(input.take_below(num_types));
    relation.destination = static_cast<std::int32_t>(input.take_below(num_types));
    const std::size_t num_edges = input.take_below(kMostEdges + 1), options = input.take<std::uint8_t>();
    const auto num_destinations =
        static_cast<std::size_t>(graph.num_nodes[static_cast<std::size_t>(relation.destination)]);
    relation.indptr = take_indptr(input, num_destinations, num_edges);
    for (std::size_t edge = 0; edge < num_edges; ++edge) {
      if (options & 1) {
        relation.wide.push_back(input.take_far());
      } else {
        relation.narrow.push_back(static_cast<std::int32_t>(input.take<std::int16_t>()));
      }
    }
    if (options & 2) {
      for (std::size_t edge = 0; edge < num_edges; ++edge) relation.weights.push_back(input.take<float>());
    }
    if (options & 4) relation.times = take_times(input, num_edges);
    relation.by_time = options & 8;
    graph.is_wide = graph.is_wide || relation.is_wide();
    graph.relations.push_back(std::move(relation));
  }
  return graph;
}

// What the excluded edges of a request refer to.
using Excluded = std::vector<std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>>;

inline DrawRequest take_request(Input& input, const HostileGraph& graph) {
  DrawRequest request{};
  const std::size_t options = input.take<std::uint8_t>(), num_layers = 1 + input.take_below(kMostLayers);
  for (const std::int64_t num_nodes : graph.num_nodes) {
    std::vector<std::int64_t>& seeds = request.seeds.emplace_back(input.take_below(kMostSeeds + 1));
    for (std::int64_t& seed : seeds) seed = static_cast<std::int64_t>(input.take<std::uint8_t>()) % (num_nodes + 1);
    if (options & 1) request.seed_times.push_back(take_times(input, seeds.size()));
  }
  for (std::size_t i = 0; i < num_layers * graph.relations.size(); ++i) {
    request.fanouts.push_back(static_cast<std::int32_t>(input.take_below(7)) - 1);
  }
  request.key = {input.take<std::uint64_t>(), input.take<std::uint8_t>(), std::nullopt};
  if (options & 2) request.key.slice_start = input.take<std::uint64_t>();
  request.weighted = options & 4;
  request.latest = options & 8;
  if (options & 16) request.positions.assign(graph.relations.size(), true);
  request.expand_once = options & 32;
  if (options & 64) {
    for (std::size_t number = 0; number < graph.relations.size(); ++number) {
      std::vector<std::int64_t> ends[2];
      const std::size_t count = input.take_below(4);
      for (std::vector<std::int64_t>& of_edges : ends) {
        for (std::size_t i = 0; i < count; ++i) of_edges.push_back(input.take<std::uint8_t>() % kMostNodes);
      }
      request.excluded.emplace_back(ends[0], ends[1]);
      request.held_out.push_back(std::make_shared<const ExcludedEdges>(ends[1], ends[0]));
    }
  }
  if (options & 128) {
    for (std::size_t number = 0; number < graph.relations.size(); ++number) {
      const std::int64_t window = take_times(input, 1)[0];
      request.windows.push_back(window & 1 ? std::nullopt : std::optional(window));
    }
    // Their number is any, too: what is not one for each seed with a time is refused.
    for (const std::vector<std::int64_t>& seeds : request.seeds) {
      if (input.take_below(2) == 1) request.seed_starts.push_back(take_times(input, seeds.size()));
    }
  }
  return request;
}

// Calls with the types of its ids, and whether it has trees. What refuses damaged topology is a std::out_of_range;
// seeds that are repeated, or none, a std::invalid_argument.
//
// No list of a graph reaches out of its file, but several may reach over the same edges: with all of them drawn, a
// minibatch stays below kMostNodes * kMostSeeds * kMostEdges edges for each layer and edge type.
template <typename Call>
void sample_hostile(const HostileGraph& graph, const DrawRequest& request, const Call& call) {
  unless_refused<std::out_of_range, std::invalid_argument>([&] {
    if (graph.is_wide) {
      request.has_trees() ? call.template operator()<std::int64_t, true>()
                          : call.template operator()<std::int64_t, false>();
    } else {
      request.has_trees() ? call.template operator()<std::int32_t, true>()
                          : call.template operator()<std::int32_t, false>();
    }
  });
}

}  // namespace diskgnn
