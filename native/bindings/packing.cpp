// Placing rows and packing extents.
#include <algorithm>

#include "packing/belady.h"
#include "bindings/arrays.h"
#include "packing/extent_packer.h"

namespace diskgnn {
namespace {

template <typename Node>
void require_in_range(In<Node> nodes, std::size_t num_nodes) {
  for (const Node node : span_of(nodes)) {
    if (node < 0 || static_cast<std::size_t>(node) >= num_nodes) throw std::out_of_range("node out of range");
  }
}

template <typename Node>
void count(Out<std::int32_t> counts, In<Node> nodes) {
  nb::gil_scoped_release release;
  require_in_range(nodes, counts.size());
  count_nodes<Node>({counts.data(), counts.size()}, span_of(nodes));
}

template <typename Node>
nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> exchange(Out<std::int32_t> next_use, In<Node> nodes,
                                                           std::int32_t batch) {
  std::vector<std::int32_t> before;
  {
    nb::gil_scoped_release release;
    require_in_range(nodes, next_use.size());
    before = exchange_next_uses<Node>({next_use.data(), next_use.size()}, span_of(nodes), batch);
  }
  return to_numpy(std::move(before));
}

template <typename Node>
bool warm_up(BeladyPlanner& planner, In<Node> nodes, In<std::int32_t> next_uses) {
  if (nodes.size() != next_uses.size()) throw std::invalid_argument("nodes and next_uses differ in length");
  nb::gil_scoped_release release;
  return planner.warm_up(span_of(nodes), span_of(next_uses));
}

template <typename Node>
nb::tuple place(BeladyPlanner& planner, In<Node> nodes, In<std::int32_t> next_uses) {
  if (nodes.size() != next_uses.size()) throw std::invalid_argument("nodes and next_uses differ in length");
  Placement<Node> placement;
  {
    nb::gil_scoped_release release;
    placement = planner.place(span_of(nodes), span_of(next_uses));
  }
  return nb::make_tuple(to_numpy(std::move(placement.addresses)), to_numpy(std::move(placement.disk_nodes)),
                        to_numpy(std::move(placement.admissions)));
}

std::uint32_t start_extent_of(PageWriter& writer, const std::string& path, std::int64_t offset, Bytes header,
                              std::size_t rows_offset, Out<std::uint8_t> tail, bool complete) {
  require(rows_offset >= header.size(), "rows_offset: expected at least the header's bytes");
  require(offset >= 0 && offset % kDirectAlignment == 0, "offset: expected a multiple of 4096");
  require(tail.size() == kDirectAlignment, "tail: expected 4096 bytes");
  nb::gil_scoped_release release;
  return start_extent(writer, std::make_shared<const OutputFile>(path), offset,
                      std::as_bytes(std::span(header.data(), header.size())), rows_offset,
                      std::as_writable_bytes(std::span(tail.data(), tail.size())), complete);
}

template <typename Node>
void pack_partition_of(PageWriter& writer, const std::string& path, In<Node> nodes, In<std::int64_t> bounds,
                       In<std::int64_t> offsets, Out<std::int64_t> cursors, Out<std::uint32_t> checksums,
                       Out<std::uint8_t> tails, Bytes partition, std::int64_t first_node, std::int64_t last_node,
                       std::size_t row_bytes, unsigned threads) {
  const std::size_t num_extents = offsets.size();
  require(bounds.size() == num_extents + 1 && cursors.size() == num_extents && checksums.size() == num_extents &&
              tails.size() == num_extents * kDirectAlignment,
          "bounds, offsets, cursors, checksums and tails do not describe the same extents");
  require(last_node >= first_node && partition.size() >= static_cast<std::size_t>(last_node - first_node) * row_bytes,
          "the partition holds fewer rows than [first_node, last_node)");
  nb::gil_scoped_release release;
  const ExtentRows<Node> extents{std::make_shared<const OutputFile>(path),
                                 span_of(nodes),
                                 span_of(bounds),
                                 span_of(offsets),
                                 {cursors.data(), num_extents},
                                 {checksums.data(), num_extents},
                                 std::as_writable_bytes(std::span(tails.data(), tails.size()))};
  pack_partition(writer, extents, std::as_bytes(std::span(partition.data(), partition.size())), first_node, last_node,
                 row_bytes, threads);
}

void scatter_rows_of(int descriptor, std::int64_t offset, In<std::int64_t> places, In<std::int64_t> sources,
                     Bytes partition, std::size_t row_bytes, unsigned threads) {
  const std::span<const std::int64_t> rows = span_of(sources);
  const auto num_rows = static_cast<std::int64_t>(row_bytes == 0 ? 0 : partition.size() / row_bytes);
  const auto inside = [num_rows](std::int64_t row) { return 0 <= row && row < num_rows; };
  if (places.size() != rows.size() || !std::all_of(rows.begin(), rows.end(), inside)) {
    throw std::invalid_argument("sources: expected a row of the partition for each place");
  }
  nb::gil_scoped_release release;
  scatter_rows(descriptor, offset, span_of(places), rows, std::as_bytes(std::span(partition.data(), partition.size())),
               row_bytes, threads);
}

}  // namespace

void bind_packing(nb::module_& m) {
  m.def("count", &count<std::int32_t>, "counts"_a.noconvert(), "nodes"_a.noconvert());
  m.def("count", &count<std::int64_t>, "counts"_a.noconvert(), "nodes"_a.noconvert());
  m.def("exchange", &exchange<std::int32_t>, "next_use"_a.noconvert(), "nodes"_a.noconvert(), "batch"_a);
  m.def("exchange", &exchange<std::int64_t>, "next_use"_a.noconvert(), "nodes"_a.noconvert(), "batch"_a);
  nb::class_<BeladyPlanner>(m, "BeladyPlanner")
      .def(
          "__init__",
          [](BeladyPlanner* self, Out<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
             std::int32_t num_batches) {
            new (self) BeladyPlanner({location.data(), location.size()}, num_static, capacity, num_batches);
          },
          "location"_a.noconvert(), "num_static"_a, "capacity"_a, "num_batches"_a, nb::keep_alive<1, 2>())
      .def("warm_up", &warm_up<std::int32_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("warm_up", &warm_up<std::int64_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("start_cycle", &BeladyPlanner::start_cycle, nb::call_guard<nb::gil_scoped_release>())
      .def("place", &place<std::int32_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("place", &place<std::int64_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("initial_nodes", [](const BeladyPlanner& self) { return to_numpy(std::vector(self.initial_nodes())); })
      .def("wrap", [](const BeladyPlanner& self) { return to_numpy(self.wrap()); });
  nb::class_<PageWriter>(m, "PageWriter")
      .def(nb::init<>())
      .def("finish", &PageWriter::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &PageWriter::close, nb::call_guard<nb::gil_scoped_release>());
  m.def("start_extent", &start_extent_of, "writer"_a, "path"_a, "offset"_a, "header"_a.noconvert(), "rows_offset"_a,
        "tail"_a.noconvert(), "complete"_a);
  const auto def_pack_partition = [&m](auto function) {
    m.def("pack_partition", function, "writer"_a, "path"_a, "nodes"_a.noconvert(), "bounds"_a.noconvert(),
          "offsets"_a.noconvert(), "cursors"_a.noconvert(), "checksums"_a.noconvert(), "tails"_a.noconvert(),
          "partition"_a.noconvert(), "first_node"_a, "last_node"_a, "row_bytes"_a, "threads"_a);
  };
  def_pack_partition(&pack_partition_of<std::int32_t>);
  def_pack_partition(&pack_partition_of<std::int64_t>);
  m.def("scatter_rows", &scatter_rows_of, "descriptor"_a, "offset"_a, "places"_a.noconvert(), "sources"_a.noconvert(),
        "partition"_a.noconvert(), "row_bytes"_a, "threads"_a);
}

}  // namespace diskgnn
