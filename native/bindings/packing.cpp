// Placing rows and packing extents.
#include <algorithm>
#include <memory>
#include <variant>

#include "bindings/arrays.h"
#include "packing/belady.h"
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
void count_nodes_of(Out<std::int32_t> counts, In<Node> nodes) {
  nb::gil_scoped_release release;
  require_in_range(nodes, counts.size());
  count_nodes<Node>({counts.data(), counts.size()}, span_of(nodes));
}

template <typename Node>
nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> exchange_next_uses_of(Out<std::int32_t> next_use, In<Node> nodes,
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

// Holds the arrays of diskgnn::ExtentRows, so that Python keeps them alive and checks them once. Not the file: whoever
// keeps this after a failure would keep a deleted one's space.
class PythonExtentRows {
 public:
  PythonExtentRows(const std::string& path, nb::object nodes, In<std::int64_t> bounds, In<std::int64_t> offsets,
                   Out<std::int64_t> cursors, Out<std::uint32_t> checksums, Out<std::uint8_t> tails)
      : path_(path),
        bounds_(std::move(bounds)),
        offsets_(std::move(offsets)),
        cursors_(std::move(cursors)),
        checksums_(std::move(checksums)),
        tails_(std::move(tails)) {
    if (In<std::int32_t> narrow; nb::try_cast(nodes, narrow, false)) {
      nodes_ = narrow;
    } else if (In<std::int64_t> wide; nb::try_cast(nodes, wide, false)) {
      nodes_ = wide;
    } else {
      throw nb::type_error("nodes: expected a C-contiguous int32 or int64 array");
    }
    const std::size_t num_extents = offsets_.size();
    require(bounds_.size() == num_extents + 1 && cursors_.size() == num_extents && checksums_.size() == num_extents &&
                tails_.size() == num_extents * kDirectAlignment,
            "bounds, offsets, cursors, checksums and tails do not describe the same extents");
  }

  void pack(PageWriter& writer, const RowWindow& window, unsigned threads) const {
    std::visit(
        [&]<typename Node>(const In<Node>& nodes) {
          const ExtentRows<Node> extents{std::make_shared<const OutputFile>(path_),
                                         span_of(nodes),
                                         span_of(bounds_),
                                         span_of(offsets_),
                                         span_of(cursors_),
                                         span_of(checksums_),
                                         std::as_writable_bytes(span_of(tails_))};
          pack_window(writer, extents, window, threads);
        },
        nodes_);
  }

 private:
  std::string path_;
  std::variant<In<std::int32_t>, In<std::int64_t>> nodes_;
  In<std::int64_t> bounds_, offsets_;
  Out<std::int64_t> cursors_;
  Out<std::uint32_t> checksums_;
  Out<std::uint8_t> tails_;
};

void pack_window_of(PageWriter& writer, const PythonExtentRows& extents, Bytes rows, std::int64_t first_node,
                    std::size_t row_bytes, unsigned threads) {
  require(row_bytes > 0 && rows.size() % row_bytes == 0, "rows: expected a multiple of row_bytes");
  nb::gil_scoped_release release;
  extents.pack(writer, {std::as_bytes(span_of(rows)), first_node, row_bytes}, threads);
}

void scatter_rows_of(int descriptor, std::int64_t offset, In<std::int64_t> places, In<std::int64_t> sources,
                     Bytes window, std::size_t row_bytes, unsigned threads) {
  const std::span<const std::int64_t> rows = span_of(sources);
  const auto num_rows = static_cast<std::int64_t>(row_bytes == 0 ? 0 : window.size() / row_bytes);
  const auto inside = [num_rows](std::int64_t row) { return 0 <= row && row < num_rows; };
  if (places.size() != rows.size() || !std::all_of(rows.begin(), rows.end(), inside)) {
    throw std::invalid_argument("sources: expected a row of the window for each place");
  }
  nb::gil_scoped_release release;
  scatter_rows(descriptor, offset, span_of(places), rows, std::as_bytes(std::span(window.data(), window.size())),
               row_bytes, threads);
}

}  // namespace

void bind_packing(nb::module_& m) {
  const auto def_of_nodes = [&m]<typename Node>(Node) {
    m.def("count_nodes", &count_nodes_of<Node>, "counts"_a.noconvert(), "nodes"_a.noconvert());
    m.def("exchange_next_uses", &exchange_next_uses_of<Node>, "next_use"_a.noconvert(), "nodes"_a.noconvert(),
          "batch"_a);
  };
  def_of_nodes(std::int32_t{});
  def_of_nodes(std::int64_t{});
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
      .def("initial_cpu_nodes",
           [](const BeladyPlanner& self) { return to_numpy(std::vector(self.initial_cpu_nodes())); })
      .def("next_cycle_slots", [](const BeladyPlanner& self) { return to_numpy(self.next_cycle_slots()); });
  nb::class_<PageWriter>(m, "PageWriter")
      .def(nb::init<>())
      .def("finish", &PageWriter::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &PageWriter::close, nb::call_guard<nb::gil_scoped_release>());
  m.def("start_extent", &start_extent_of, "writer"_a, "path"_a, "offset"_a, "header"_a.noconvert(), "rows_offset"_a,
        "tail"_a.noconvert(), "complete"_a);
  nb::class_<PythonExtentRows>(m, "ExtentRows")
      .def(nb::init<const std::string&, nb::object, In<std::int64_t>, In<std::int64_t>, Out<std::int64_t>,
                    Out<std::uint32_t>, Out<std::uint8_t>>(),
           nb::kw_only(), "path"_a, "nodes"_a, "bounds"_a.noconvert(), "offsets"_a.noconvert(), "cursors"_a.noconvert(),
           "checksums"_a.noconvert(), "tails"_a.noconvert());
  m.def("pack_window", &pack_window_of, "writer"_a, "extents"_a, "rows"_a.noconvert(), "first_node"_a, "row_bytes"_a,
        "threads"_a);
  m.def("scatter_rows", &scatter_rows_of, "descriptor"_a, "offset"_a, "places"_a.noconvert(), "sources"_a.noconvert(),
        "window"_a.noconvert(), "row_bytes"_a, "threads"_a);
}

}  // namespace diskgnn
