// Sampling in memory.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>
#include <variant>

#include "bindings/arrays.h"
#include "bindings/minibatches.h"
#include "files/page_memory.h"
#include "sampling/label_propagation.h"
#include "sampling/neighbor_sampler.h"

namespace diskgnn {
namespace {

using NodeArray = std::variant<In<std::int32_t>, In<std::int64_t>>;

NodeArray node_array(const nb::object& array, const char* what) {
  if (In<std::int32_t> narrow; nb::try_cast(array, narrow, false)) return narrow;
  if (In<std::int64_t> wide; nb::try_cast(array, wide, false)) return wide;
  throw nb::type_error(what);
}

NodeSpan span_of_nodes(const NodeArray& array) {
  return std::visit([](const auto& each) -> NodeSpan { return span_of(each); }, array);
}

// The arrays of one edge type: Python keeps them alive, their dtypes are checked once.
class RelationArrays {
 public:
  RelationArrays(std::int32_t source, std::int32_t destination, In<std::int64_t> indptr, const nb::object& indices,
                 std::optional<In<float>> weights, std::optional<In<std::int64_t>> times, bool by_time)
      : source_(source),
        destination_(destination),
        indptr_(std::move(indptr)),
        indices_(node_array(indices, "indices: expected a C-contiguous int32 or int64 array [E]")),
        weights_(std::move(weights)),
        times_(std::move(times)),
        by_time_(by_time) {
    if (indptr_.size() == 0) throw std::invalid_argument("indptr is empty; expected N + 1 offsets");
    const auto num_edges = static_cast<std::int64_t>(std::visit([](const auto& a) { return a.size(); }, indices_));
    if (indptr_(0) != 0 || indptr_(indptr_.size() - 1) != num_edges) {
      throw std::invalid_argument("indptr must run from 0 to the number of indices, " + std::to_string(num_edges));
    }
    const auto fits = [&](const auto& array) {
      return !array || static_cast<std::int64_t>(array->size()) == num_edges;
    };
    require(fits(weights_) && fits(times_), "weights and times: expected one per edge");
  }

  // In-neighbours of some nodes in memory: starts [N] in `neighbors`, -1 for the other nodes.
  void cache_neighbors(In<std::int64_t> starts, const nb::object& neighbors) {
    require(starts.size() + 1 == indptr_.size(), "starts: expected one per node");
    NodeArray cached = node_array(neighbors, "neighbors: expected the dtype of indices");
    if (cached.index() != indices_.index()) throw nb::type_error("neighbors: expected the dtype of indices");
    cached_ = std::move(cached);
    starts_ = std::move(starts);
  }

  Relation relation() const {
    Relation relation{source_,
                      destination_,
                      span_of(indptr_),
                      span_of_nodes(indices_),
                      span_or_empty(weights_),
                      span_or_empty(times_),
                      {},
                      {},
                      by_time_};
    if (starts_.size() > 0) {
      relation.cache_starts = span_of(starts_);
      relation.cached_neighbors = span_of_nodes(cached_);
    }
    return relation;
  }

  bool is_wide() const { return std::holds_alternative<In<std::int64_t>>(indices_); }
  std::int64_t num_nodes() const { return static_cast<std::int64_t>(indptr_.size()) - 1; }  // destinations

 private:
  std::int32_t source_, destination_;
  In<std::int64_t> indptr_;
  NodeArray indices_;
  std::optional<In<float>> weights_;
  std::optional<In<std::int64_t>> times_;
  bool by_time_;
  In<std::int64_t> starts_;
  NodeArray cached_;
};

constexpr std::size_t kKeptBytes = 32 << 20;

// Samples from arrays in memory, or mapped.
class NeighborSampler {
 public:
  NeighborSampler(std::vector<std::int64_t> num_nodes, std::vector<RelationArrays> relations, NodeTimes node_times)
      : num_nodes_(std::move(num_nodes)), relations_(std::move(relations)), node_times_(std::move(node_times)) {
    require(!relations_.empty(), "relations is empty");
    require(node_times_.size() == num_nodes_.size(), "node_times: expected one entry per node type");
    for (std::size_t type = 0; type < num_nodes_.size(); ++type) {
      require(!node_times_[type] || static_cast<std::int64_t>(node_times_[type]->size()) == num_nodes_[type],
              "node_times: expected one per node");
    }
    const auto num_types = static_cast<std::int32_t>(num_nodes_.size());
    for (const RelationArrays& each : relations_) {
      const Relation relation = each.relation();
      for (const std::int32_t type : {relation.source, relation.destination}) {
        require(type >= 0 && type < num_types, "relations: expected numbers of node types");
      }
      require(each.num_nodes() == num_nodes_[static_cast<std::size_t>(relation.destination)],
              "indptr: expected an offset per destination, and one more");
      num_edges_.push_back(
          std::visit([](const auto& a) { return static_cast<std::int64_t>(a.size()); }, relation.indices));
      is_wide_ = is_wide_ || each.is_wide();
    }
  }

  // Of a graph of one type.
  NeighborSampler(const In<std::int64_t>& indptr, const nb::object& indices)
      : NeighborSampler({static_cast<std::int64_t>(indptr.size()) - 1},
                        {RelationArrays(0, 0, indptr, indices, std::nullopt, std::nullopt, false)}, NodeTimes(1)) {}

  void cache_neighbors(In<std::int64_t> starts, const nb::object& neighbors) {
    relations_[0].cache_neighbors(std::move(starts), neighbors);
  }

  nb::tuple draw(const DrawRequest& request) const {
    return is_wide_ ? draw_as<std::int64_t>(request) : draw_as<std::int32_t>(request);
  }

 private:
  template <typename Id>
  nb::tuple draw_as(const DrawRequest& request) const {
    SampledMinibatch<Id> found;
    {
      nb::gil_scoped_release release;
      TypedTopology topology{num_nodes_, {}, {}};
      for (const auto& times : node_times_) topology.node_times.push_back(span_or_empty(times));
      for (const RelationArrays& each : relations_) topology.relations.push_back(each.relation());
      found = request.has_trees() ? sample_minibatch<Id, true>(topology, request)
                                  : sample_minibatch<Id, false>(topology, request);
    }
    return to_tuple(std::move(found), request.positions, num_edges_);
  }

  std::vector<std::int64_t> num_nodes_;
  std::vector<RelationArrays> relations_;
  NodeTimes node_times_;
  std::vector<std::int64_t> num_edges_;
  bool is_wide_ = false;
  const KeptPages kept_pages_{kKeptBytes};  // of minibatches, for the next ones
};

template <typename T>
std::vector<std::vector<T>> to_vectors(const std::vector<In<T>>& arrays) {
  std::vector<std::vector<T>> vectors;
  for (const In<T>& array : arrays) {
    const std::span<const T> values = span_of(array);
    vectors.emplace_back(values.begin(), values.end());
  }
  return vectors;
}

using HeldOut = std::vector<std::shared_ptr<ExcludedEdges>>;
using Pairs = std::optional<std::tuple<In<std::int64_t>, In<std::int64_t>>>;

// [n] 1 for each of these edges that is one of `edges`, 0 for others.
auto contains(const ExcludedEdges& edges, const In<std::int64_t>& sources, const In<std::int64_t>& destinations) {
  require(sources.size() == destinations.size(), "expected as many sources as destinations");
  std::vector<std::uint8_t> found(sources.size());
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < found.size(); ++i) found[i] = edges.contains(sources(i), destinations(i));
  }
  return to_numpy(std::move(found));
}

nb::tuple edges_of(const ExcludedEdges& edges) {
  auto [sources, destinations] = edges.edges();
  return nb::make_tuple(to_numpy(std::move(sources)), to_numpy(std::move(destinations)));
}

void bind_excluded(nb::module_& m) {
  nb::class_<ExcludedEdges>(m, "ExcludedEdges")
      .def(
          "__init__",
          [](ExcludedEdges* self, const In<std::int64_t>& sources, const In<std::int64_t>& destinations) {
            require(sources.size() == destinations.size(), "expected as many sources as destinations");
            nb::gil_scoped_release release;
            new (self) ExcludedEdges(span_of(sources), span_of(destinations));
          },
          "sources"_a.noconvert(), "destinations"_a.noconvert())
      .def("__len__", &ExcludedEdges::size)
      .def("edges", &edges_of)
      .def("__getstate__", &edges_of)
      .def("__setstate__",
           [](ExcludedEdges* self, const std::tuple<In<std::int64_t>, In<std::int64_t>>& state) {
             new (self) ExcludedEdges(span_of(std::get<0>(state)), span_of(std::get<1>(state)));
           })
      .def("contains", &contains, "sources"_a.noconvert(), "destinations"_a.noconvert())
      .attr("MOST_BYTES") = ExcludedEdges::kMostBytes;
}

void bind_requests(nb::module_& m) {
  nb::class_<DrawRequest>(m, "DrawRequest")
      .def(
          "__init__",
          [](DrawRequest* self, const std::vector<In<std::int64_t>>& seeds, In<std::int32_t> fanouts, std::uint64_t key,
             std::uint64_t minibatch, std::optional<std::uint64_t> slice_start,
             const std::optional<std::vector<In<std::int64_t>>>& seed_times,
             const std::optional<std::vector<In<std::int64_t>>>& seed_starts, const std::vector<Pairs>& excluded,
             const HeldOut& held_out, bool weighted, bool latest, std::vector<bool> positions, bool expand_once,
             std::vector<std::optional<std::int64_t>> windows) {
            require(fanouts.size() > 0, "fanouts is empty");
            const std::span<const std::int32_t> layers = span_of(fanouts);
            new (self) DrawRequest{to_vectors(seeds),
                                   {},
                                   {},
                                   std::move(windows),
                                   {layers.begin(), layers.end()},
                                   {key, minibatch, slice_start},
                                   {},
                                   {held_out.begin(), held_out.end()},
                                   weighted,
                                   latest,
                                   std::move(positions),
                                   expand_once};
            if (seed_times) {
              require(seed_times->size() == seeds.size(), "seed_times: expected some of each node type");
              self->seed_times = to_vectors(*seed_times);
            }
            if (seed_starts) self->seed_starts = to_vectors(*seed_starts);
            for (const Pairs& pairs : excluded) {
              if (!pairs) {
                self->excluded.emplace_back();
                continue;
              }
              const auto& [sources, destinations] = *pairs;
              require(sources.size() == destinations.size(), "excluded: expected as many sources as destinations");
              self->excluded.emplace_back(span_of(sources), span_of(destinations));
            }
          },
          "seeds"_a, "fanouts"_a.noconvert(), "key"_a, "minibatch"_a, nb::kw_only(), "slice_start"_a = nb::none(),
          "seed_times"_a = nb::none(), "seed_starts"_a = nb::none(), "excluded"_a = std::vector<Pairs>{},
          "held_out"_a = nb::list(), "weighted"_a = false, "latest"_a = false, "positions"_a = std::vector<bool>{},
          "expand_once"_a = false, "windows"_a = std::vector<std::optional<std::int64_t>>{});
  nb::class_<RelationArrays>(m, "Relation")
      .def(nb::init<std::int32_t, std::int32_t, In<std::int64_t>, nb::object, std::optional<In<float>>,
                    std::optional<In<std::int64_t>>, bool>(),
           "source"_a, "destination"_a, "indptr"_a.noconvert(), "indices"_a, "weights"_a = nb::none(),
           "times"_a = nb::none(), "by_time"_a = false);
}

template <typename Node>
void propagate_labels(Out<Node> labels, Out<std::int32_t> sizes, std::int32_t most_nodes, std::size_t first,
                      In<std::int64_t> offsets, In<Node> neighbors) {
  require(labels.size() == sizes.size(), "sizes: expected one per label");
  nb::gil_scoped_release release;
  LabelPropagation<Node>(span_of(labels), span_of(sizes), most_nodes)
      .visit(first, span_of(offsets), span_of(neighbors));
}

template <typename Node>
void bind_label_propagation(nb::module_& m) {
  m.def("propagate_labels", &propagate_labels<Node>, "labels"_a.noconvert(), "sizes"_a.noconvert(), "most_nodes"_a,
        "first"_a, "offsets"_a.noconvert(), "neighbors"_a.noconvert());
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.attr("MOST_LABEL_NEIGHBORS") = LabelPropagation<std::int32_t>::kMostNeighbors;
  bind_label_propagation<std::int32_t>(m);
  bind_label_propagation<std::int64_t>(m);
  bind_excluded(m);
  bind_requests(m);
  nb::class_<NeighborSampler>(m, "NeighborSampler")
      .def(nb::init<In<std::int64_t>, nb::object>(), "indptr"_a.noconvert(), "indices"_a.noconvert())
      .def(nb::init<std::vector<std::int64_t>, std::vector<RelationArrays>, NodeTimes>(), nb::kw_only(), "num_nodes"_a,
           "relations"_a, "node_times"_a)
      .def("draw", &NeighborSampler::draw, "request"_a)
      .def("cache_neighbors", &NeighborSampler::cache_neighbors, "starts"_a.noconvert(), "neighbors"_a);
}

}  // namespace diskgnn
