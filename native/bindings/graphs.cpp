// Building and generating graphs.
#include "bindings/arrays.h"
#include "graph/csc_builder.h"
#include "graph/graph_generator.h"

namespace diskgnn {
namespace {

template <class Index>
using EdgeArray = nb::ndarray<Index, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

template <class Id>
void bind_count_edges(nb::module_& m) {
  m.def(
      "count_edges",
      [](In<Id> src, In<Id> dst, std::int64_t num_nodes, int shift, Out<std::int64_t> bin_edges) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(num_nodes == 0 || static_cast<std::uint64_t>(num_nodes - 1) >> shift < bin_edges.size(),
                "fewer bins than the nodes need");
        nb::gil_scoped_release release;
        return count_edges<Id>(span_of(src), span_of(dst), num_nodes, shift, span_of(bin_edges));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a, "shift"_a, "bin_edges"_a.noconvert());
}

template <class Id, class Index>
void bind_scatter_edges(nb::module_& m) {
  m.def(
      "scatter_edges",
      [](In<Id> src, In<Id> dst, std::int64_t first, std::int64_t num_nodes, int shift, In<std::int32_t> bucket_of_bin,
         EdgeArray<Index> buffer, Out<std::int64_t> cursors, In<std::int64_t> ends) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(first >= 0, "first is negative");
        require(cursors.size() == ends.size(), "cursors and ends differ in length");
        nb::gil_scoped_release release;
        const auto limit = static_cast<std::int64_t>(buffer.shape(0));
        for (std::size_t i = 0; i < ends.size(); ++i) {
          require(0 <= cursors.data()[i] && cursors.data()[i] <= ends.data()[i] && ends.data()[i] <= limit,
                  "a bucket lies outside the buffer");
        }
        std::span edges(reinterpret_cast<Edge<Index>*>(buffer.data()), buffer.shape(0));
        return scatter_edges<Id, Index>(span_of(src), span_of(dst), first, num_nodes, shift, span_of(bucket_of_bin),
                                        edges, span_of(cursors), span_of(ends));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "first"_a, "num_nodes"_a, "shift"_a, "bucket_of_bin"_a.noconvert(),
      "buffer"_a.noconvert(), "cursors"_a.noconvert(), "ends"_a.noconvert());
}

template <class Index>
void bind_sort_bucket(nb::module_& m) {
  m.def(
      "sort_bucket",
      [](EdgeArray<const Index> edges, std::int64_t first_node, bool self_loops, bool drop_duplicates,
         Out<std::int64_t> degrees, Out<Index> indices) {
        const std::size_t room = edges.shape(0) + (self_loops ? degrees.size() : 0);
        require(indices.size() >= room, "indices is too short");
        nb::gil_scoped_release release;
        std::span bucket(reinterpret_cast<const Edge<Index>*>(edges.data()), edges.shape(0));
        return sort_bucket<Index>(bucket, first_node, self_loops, drop_duplicates, span_of(degrees), span_of(indices));
      },
      "edges"_a.noconvert(), "first_node"_a, "self_loops"_a, "drop_duplicates"_a, "degrees"_a.noconvert(),
      "indices"_a.noconvert());
}

void bind_csc_builder(nb::module_& m) {
  bind_count_edges<std::int32_t>(m);
  bind_count_edges<std::int64_t>(m);
  bind_scatter_edges<std::int32_t, std::int32_t>(m);
  bind_scatter_edges<std::int32_t, std::int64_t>(m);
  bind_scatter_edges<std::int64_t, std::int32_t>(m);
  bind_scatter_edges<std::int64_t, std::int64_t>(m);
  bind_sort_bucket<std::int32_t>(m);
  bind_sort_bucket<std::int64_t>(m);
}

template <class Node>
void generate_edges(const GraphGenerator& generator, std::uint64_t first, Out<Node> src, Out<Node> dst) {
  require(src.size() == dst.size(), "src and dst differ in length");
  nb::gil_scoped_release release;
  generator.edges(first, span_of(src), span_of(dst));
}

template <auto Fill>
void generate_values(const GraphGenerator& generator, std::uint64_t first, Out<std::int64_t> out) {
  nb::gil_scoped_release release;
  (generator.*Fill)(first, span_of(out));
}

void bind_graph_generator(nb::module_& m) {
  nb::enum_<FeatureType>(m, "FeatureType")
      .value("float32", FeatureType::kFloat32)
      .value("float16", FeatureType::kFloat16)
      .value("bfloat16", FeatureType::kBFloat16)
      .value("int8", FeatureType::kInt8);

  using Rows = nb::ndarray<std::uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
  nb::class_<GraphGenerator>(m, "GraphGenerator")
      .def(
          "__init__",
          [](GraphGenerator* self, std::uint64_t num_nodes, std::uint64_t num_classes, double homophily,
             std::uint64_t num_features, double feature_signal, std::uint64_t seed) {
            require(num_classes > 0 && num_nodes / 2 >= num_classes, "fewer than two nodes per class");
            new (self) GraphGenerator({num_nodes, num_classes, homophily, num_features, feature_signal, seed});
          },
          nb::kw_only(), "num_nodes"_a, "num_classes"_a, "homophily"_a, "num_features"_a, "feature_signal"_a, "seed"_a)
      .def("edges", &generate_edges<std::int32_t>, "first"_a, "src"_a.noconvert(), "dst"_a.noconvert())
      .def("edges", &generate_edges<std::int64_t>, "first"_a, "src"_a.noconvert(), "dst"_a.noconvert())
      .def("labels", &generate_values<&GraphGenerator::labels>, "first"_a, "out"_a.noconvert())
      .def("shuffled_nodes", &generate_values<&GraphGenerator::shuffled_nodes>, "first"_a, "out"_a.noconvert())
      .def(
          "features",
          [](const GraphGenerator& self, std::uint64_t first, FeatureType type, Rows out) {
            require(out.shape(1) == self.row_bytes(type), "out's rows have another length than a feature row");
            nb::gil_scoped_release release;
            self.features(first, type, std::as_writable_bytes(std::span(out.data(), out.size())));
          },
          "first"_a, "type"_a, "out"_a.noconvert());
}

}  // namespace

void bind_graphs(nb::module_& m) {
  bind_csc_builder(m);
  bind_graph_generator(m);
}

}  // namespace diskgnn
