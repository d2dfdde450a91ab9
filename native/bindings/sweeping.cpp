// Sampling by sweeps over topology on disk.
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/minibatches.h"
#include "files/direct_file.h"
#include "sampling/topology_sweep.h"

namespace diskgnn {
namespace {

std::vector<std::int64_t> num_edges_of(const GraphFiles& files) {
  std::vector<std::int64_t> num_edges;
  for (const RelationFiles& relation : files.relations) num_edges.push_back(relation.num_edges);
  return num_edges;
}

template <typename Id, bool kTrees>
void bind_expansion(nb::module_& m, const char* name, nb::class_<TopologySweep>& sweep) {
  using Growing = Expansion<Id, kTrees>;
  using Group = std::vector<Growing*>;
  nb::class_<Growing>(m, name)
      .def(nb::init<DrawRequest, const GraphFiles&>(), "request"_a, "files"_a, nb::keep_alive<1, 3>())
      .def("relabel", &Growing::relabel, nb::call_guard<nb::gil_scoped_release>())
      .def("take",
           [](Growing& self) {
             const std::vector<std::int64_t> num_edges = num_edges_of(self.files());
             return to_tuple(self.take(), self.request().positions, num_edges);
           })
      .def_prop_ro("layer", &Growing::layer)
      .def_prop_ro("memory_bytes", &Growing::memory_bytes)
      .def_prop_ro("drawn_bytes", &Growing::drawn_bytes)
      .def_prop_ro("relabel_bytes", &Growing::relabel_bytes)
      .def_prop_ro("next_layer_bytes", &Growing::next_layer_bytes);
  sweep
      .def(
          "count", [](TopologySweep& self, const Group& group) { self.count<Id, kTrees>(group); }, "group"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "draw", [](TopologySweep& self, const Group& group) { self.draw<Id, kTrees>(group); }, "group"_a,
          nb::call_guard<nb::gil_scoped_release>());
}

// The files of a graph, and the arrays of times that it keeps alive.
struct BoundGraphFiles : GraphFiles {
  NodeTimes held_times;
};

using ColumnPlace = std::tuple<std::string, std::uint64_t, unsigned>;  // path, offset, bytes of an item

Column open_column(const ColumnPlace& place) {
  const auto& [path, offset, item_bytes] = place;
  return {DirectFile(path), offset, item_bytes};
}

std::optional<Column> open_optional_column(const std::optional<ColumnPlace>& place) {
  if (!place) return std::nullopt;
  return open_column(*place);
}

}  // namespace

void bind_sweeping(nb::module_& m) {
  nb::class_<GraphFiles>(m, "_GraphFiles");
  nb::class_<BoundGraphFiles, GraphFiles>(m, "GraphFiles")
      .def(
          "__init__",
          [](BoundGraphFiles* self, std::vector<std::int64_t> num_nodes, NodeTimes node_times) {
            require(node_times.size() == num_nodes.size(), "node_times: expected one entry per node type");
            new (self) BoundGraphFiles;
            self->num_nodes = std::move(num_nodes);
            for (const auto& times : node_times) self->node_times.push_back(span_or_empty(times));
            self->held_times = std::move(node_times);
          },
          "num_nodes"_a, "node_times"_a)
      .def(
          "add_relation",
          [](BoundGraphFiles& self, std::int32_t source, std::int32_t destination, std::int64_t num_edges,
             const ColumnPlace& indptr, const ColumnPlace& indices, const std::optional<ColumnPlace>& weights,
             const std::optional<ColumnPlace>& times, bool by_time) {
            const auto num_types = static_cast<std::int32_t>(self.num_nodes.size());
            require(source >= 0 && source < num_types && destination >= 0 && destination < num_types,
                    "source, destination: expected numbers of node types");
            self.relations.push_back({source, destination, num_edges, open_column(indptr), open_column(indices),
                                      open_optional_column(weights), open_optional_column(times), by_time});
          },
          "source"_a, "destination"_a, nb::kw_only(), "num_edges"_a, "indptr"_a, "indices"_a, "weights"_a = nb::none(),
          "times"_a = nb::none(), "by_time"_a = false);
  nb::class_<TopologySweep> sweep(m, "TopologySweep");
  sweep
      .def(
          "__init__",
          [](TopologySweep* self, const GraphFiles& files, const std::string& engine, std::size_t window_bytes,
             unsigned threads) { new (self) TopologySweep(files, engine_kind(engine), window_bytes, threads); },
          "files"_a, nb::kw_only(), "engine"_a, "window_bytes"_a, "threads"_a, nb::keep_alive<1, 2>())
      .def("stop", &TopologySweep::stop)
      .def_prop_ro("read_bytes", &TopologySweep::read_bytes);
  sweep.attr("READERS_PER_THREAD") = TopologySweep::kReadersPerThread;
  bind_expansion<std::int32_t, false>(m, "Expansion32", sweep);
  bind_expansion<std::int64_t, false>(m, "Expansion64", sweep);
  bind_expansion<std::int32_t, true>(m, "TreeExpansion32", sweep);
  bind_expansion<std::int64_t, true>(m, "TreeExpansion64", sweep);
}

}  // namespace diskgnn
