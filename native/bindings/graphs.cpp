// Building and generating graphs.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <variant>

#include "bindings/arrays.h"
#include "graph/csc_builder.h"
#include "graph/graph_generator.h"
#include "graph/id_ranges.h"
#include "graph/text_hashing.h"

namespace diskgnn {
namespace {

template <class Index>
using EdgeArray = nb::ndarray<Index, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

template <class Id>
using EndsArray = nb::ndarray<const Id, nb::ndim<1>, nb::device::cpu>;

template <class Id>
Ends<Id> ends_of(const EndsArray<Id>& ends) {
  return {ends.data(), static_cast<std::ptrdiff_t>(ends.stride(0)), ends.size()};
}

template <class Id>
void bind_count_edges(nb::module_& m) {
  m.def(
      "count_edges",
      [](const EndsArray<Id>& src, const EndsArray<Id>& dst, std::int64_t num_sources, std::int64_t num_nodes,
         int shift, Out<std::int64_t> bin_edges) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(num_nodes == 0 || static_cast<std::uint64_t>(num_nodes - 1) >> shift < bin_edges.size(),
                "fewer bins than the nodes need");
        nb::gil_scoped_release release;
        return count_edges<Id>(ends_of(src), ends_of(dst), {num_sources, num_nodes}, shift, span_of(bin_edges));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "num_sources"_a, "num_nodes"_a, "shift"_a, "bin_edges"_a.noconvert());
}

// Holds the arrays of diskgnn::EdgeBuffers, so that Python keeps them alive.
class PythonEdgeBuffers {
 public:
  PythonEdgeBuffers(std::int64_t num_sources, std::int64_t num_nodes, int shift, In<std::int32_t> bucket_of_bin,
                    nb::object buffer, Out<std::int64_t> cursors, In<std::int64_t> ends)
      : range_{num_sources, num_nodes},
        shift_(shift),
        bucket_of_bin_(std::move(bucket_of_bin)),
        cursors_(std::move(cursors)),
        ends_(std::move(ends)) {
    if (EdgeArray<std::int32_t> narrow; nb::try_cast(buffer, narrow, false)) {
      buffer_ = narrow;
    } else if (EdgeArray<std::int64_t> wide; nb::try_cast(buffer, wide, false)) {
      buffer_ = wide;
    } else {
      throw nb::type_error("buffer: expected a C-contiguous int32 or int64 array of pairs");
    }
    require(cursors_.size() == ends_.size(), "cursors and ends differ in length");
  }

  template <class Id>
  std::int64_t scatter(const EndsArray<Id>& src, const EndsArray<Id>& dst, std::int64_t first, bool reverse) const {
    require(src.size() == dst.size(), "src and dst differ in length");
    require(first >= 0, "first is negative");
    return std::visit(
        [&]<class Index>(const EdgeArray<Index>& buffer) {
          nb::gil_scoped_release release;
          require_inside(static_cast<std::int64_t>(buffer.shape(0)));
          std::span edges(reinterpret_cast<Edge<Index>*>(buffer.data()), buffer.shape(0));
          return scatter_edges<Id, Index>(
              ends_of(src), ends_of(dst), reverse, first,
              {range_, shift_, span_of(bucket_of_bin_), edges, span_of(cursors_), span_of(ends_)});
        },
        buffer_);
  }

 private:
  // Python may have moved the cursors since the last call.
  void require_inside(std::int64_t limit) const {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      require(0 <= cursors_.data()[i] && cursors_.data()[i] <= ends_.data()[i] && ends_.data()[i] <= limit,
              "a bucket lies outside the buffer");
    }
  }

  EdgeRange range_;
  int shift_;
  In<std::int32_t> bucket_of_bin_;
  std::variant<EdgeArray<std::int32_t>, EdgeArray<std::int64_t>> buffer_;
  Out<std::int64_t> cursors_;
  In<std::int64_t> ends_;
};

void bind_edge_buffers(nb::module_& m) {
  nb::class_<PythonEdgeBuffers>(m, "EdgeBuffers")
      .def(nb::init<std::int64_t, std::int64_t, int, In<std::int32_t>, nb::object, Out<std::int64_t>,
                    In<std::int64_t>>(),
           nb::kw_only(), "num_sources"_a, "num_nodes"_a, "shift"_a, "bucket_of_bin"_a.noconvert(), "buffer"_a,
           "cursors"_a.noconvert(), "ends"_a.noconvert())
      .def("scatter", &PythonEdgeBuffers::scatter<std::int32_t>, "src"_a.noconvert(), "dst"_a.noconvert(), "first"_a,
           "reverse"_a = false)
      .def("scatter", &PythonEdgeBuffers::scatter<std::int64_t>, "src"_a.noconvert(), "dst"_a.noconvert(), "first"_a,
           "reverse"_a = false);
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

template <class Index>
void bind_sort_bucket_with_order(nb::module_& m) {
  m.def(
      "sort_bucket_with_order",
      [](EdgeArray<const Index> edges, std::int64_t first_node, Out<std::int64_t> degrees, Out<Index> indices,
         Out<std::int64_t> order, std::optional<In<std::int64_t>> times) {
        require(indices.size() == edges.shape(0) && order.size() == edges.shape(0),
                "indices or order differ from edges in length");
        require(!times || times->size() == edges.shape(0), "times: expected one per edge");
        nb::gil_scoped_release release;
        std::span bucket(reinterpret_cast<const Edge<Index>*>(edges.data()), edges.shape(0));
        const std::span<const std::int64_t> of_edges = times ? span_of(*times) : std::span<const std::int64_t>{};
        sort_bucket_with_order<Index>(bucket, of_edges, first_node, span_of(degrees), span_of(indices), span_of(order));
      },
      "edges"_a.noconvert(), "first_node"_a, "degrees"_a.noconvert(), "indices"_a.noconvert(), "order"_a.noconvert(),
      "times"_a = nb::none());
}

void bind_csc_builder(nb::module_& m) {
  bind_count_edges<std::int32_t>(m);
  bind_count_edges<std::int64_t>(m);
  bind_edge_buffers(m);
  bind_sort_bucket<std::int32_t>(m);
  bind_sort_bucket<std::int64_t>(m);
  bind_sort_bucket_with_order<std::int32_t>(m);
  bind_sort_bucket_with_order<std::int64_t>(m);
}

Strings strings_of(const In<std::int64_t>& offsets, const Bytes& bytes) {
  const std::span<const std::int64_t> bounds = span_of(offsets);
  require(!bounds.empty() && bounds.front() >= 0 && static_cast<std::uint64_t>(bounds.back()) <= bytes.size() &&
              std::ranges::is_sorted(bounds),
          "offsets decrease, or lead out of the bytes");
  return {bounds, span_of(bytes)};
}

void bind_id_ranges(nb::module_& m) {
  m.def(
      "find_ranges",
      [](In<std::int64_t> offsets, Bytes bytes, In<std::int64_t> bound_offsets, Bytes bound_bytes,
         Out<std::uint16_t> ranges) {
        nb::gil_scoped_release release;
        const Strings ids = strings_of(offsets, bytes), bounds = strings_of(bound_offsets, bound_bytes);
        require(ids.size() == ranges.size(), "offsets and ranges differ in length");
        require(bounds.size() < 65536, "more bounds than ranges can count");
        find_ranges(ids, bounds, span_of(ranges));
      },
      "offsets"_a.noconvert(), "content"_a.noconvert(), "bound_offsets"_a.noconvert(), "bound_content"_a.noconvert(),
      "ranges"_a.noconvert());
}

void bind_text_hashing(nb::module_& m) {
  m.def(
      "hash_texts",
      [](In<std::int64_t> offsets, Bytes bytes, nb::ndarray<std::int8_t, nb::ndim<2>, nb::device::cpu> codes) {
        nb::gil_scoped_release release;
        const Strings texts = strings_of(offsets, bytes);
        const std::size_t width = codes.shape(1);
        const bool are_together = width == 1 || texts.size() == 0 || codes.stride(1) == 1;
        require(codes.shape(0) == texts.size() && width > 0 && are_together,
                "codes are not one row of numbers side by side for each text");
        hash_texts(texts, {codes.data(), width, static_cast<std::ptrdiff_t>(codes.stride(0))});
      },
      "offsets"_a.noconvert(), "content"_a.noconvert(), "codes"_a.noconvert());
}

template <class Node>
void generate_edges(const GraphGenerator& generator, std::uint64_t first, Out<Node> src, Out<Node> dst) {
  require(src.size() == dst.size(), "src and dst differ in length");
  nb::gil_scoped_release release;
  generator.edges(first, span_of(src), span_of(dst));
}

template <class Node>
void generate_edges_from(const GraphGenerator& generator, const GraphGenerator& sources, std::uint64_t key,
                         double homophily, std::uint64_t first, Out<Node> src, Out<Node> dst) {
  require(src.size() == dst.size(), "src and dst differ in length");
  require(generator.num_classes() == sources.num_classes(), "the numbers of classes differ");
  nb::gil_scoped_release release;
  generator.edges_from(sources, key, homophily, first, span_of(src), span_of(dst));
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
      .def("edges_from", &generate_edges_from<std::int32_t>, "sources"_a, "key"_a, "homophily"_a, "first"_a,
           "src"_a.noconvert(), "dst"_a.noconvert())
      .def("edges_from", &generate_edges_from<std::int64_t>, "sources"_a, "key"_a, "homophily"_a, "first"_a,
           "src"_a.noconvert(), "dst"_a.noconvert())
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
  bind_id_ranges(m);
  bind_text_hashing(m);
  bind_graph_generator(m);
}

}  // namespace diskgnn
