// Placing rows and packing extents.
#include <algorithm>
#include <memory>
#include <string>
#include <variant>

#include "bindings/arrays.h"
#include "packing/belady.h"
#include "packing/extent_packer.h"
#include "packing/in_range.h"
#include "packing/next_uses.h"

namespace diskgnn {
namespace {

// Of a sequence of `num_batches`, counted on into the next cycle; -1 for rows that are static.
void require_next_uses(std::span<const std::int32_t> next_uses, std::size_t num_batches) {
  require_in_range<std::int32_t>(next_uses, -1, 2 * num_batches + 1, "next use");
}

template <typename Node>
void count_nodes_of(Out<std::int32_t> counts, In<Node> nodes) {
  nb::gil_scoped_release release;
  require_in_range<Node>(span_of(nodes), 0, counts.size(), "node");
  count_nodes<Node>({counts.data(), counts.size()}, span_of(nodes));
}

template <typename Node>
void mark_nodes_of(Out<bool> flags, In<Node> nodes) {
  nb::gil_scoped_release release;
  require_in_range<Node>(span_of(nodes), 0, flags.size(), "node");
  mark_nodes<Node>({reinterpret_cast<std::uint8_t*>(flags.data()), flags.size()}, span_of(nodes));
}

template <typename Node>
nb::tuple sort_nodes_of(In<Node> nodes, std::uint64_t num_nodes) {
  SortedNodes<Node> sorted;
  {
    nb::gil_scoped_release release;
    require_in_range<Node>(span_of(nodes), 0, num_nodes, "node");
    sorted = sort_nodes<Node>(span_of(nodes), num_nodes);
  }
  return nb::make_tuple(to_numpy(std::move(sorted.nodes)), to_numpy(std::move(sorted.order)));
}

template <typename Node>
nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> exchange_next_uses_of(Out<std::int32_t> next_use, In<Node> nodes,
                                                                        std::int32_t batch, Node first_node) {
  PageArray<std::int32_t> before;
  {
    nb::gil_scoped_release release;
    require_in_range<Node>(span_of(nodes), first_node, next_use.size(), "node");
    before = exchange_next_uses<Node>(span_of(next_use), span_of(nodes), first_node, batch);
  }
  return to_numpy(std::move(before));
}

nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> count_next_uses_of(In<std::int32_t> next_uses,
                                                                     std::int32_t num_batches) {
  std::vector<std::int32_t> pairs;
  {
    nb::gil_scoped_release release;
    require_next_uses(span_of(next_uses), static_cast<std::size_t>(num_batches));
    for (const UseCount& count : count_next_uses(span_of(next_uses), num_batches)) {
      pairs.insert(pairs.end(), {count.use, count.rows});
    }
  }
  return to_numpy(std::move(pairs));
}

nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> belady_misses_of(In<std::int64_t> bounds, In<std::int32_t> pairs,
                                                                   std::int64_t capacity, bool from_empty) {
  static_assert(sizeof(UseCount) == 2 * sizeof(std::int32_t));
  const ArcCounts arcs{span_of(bounds), {reinterpret_cast<const UseCount*>(pairs.data()), pairs.size() / 2}};
  require(!arcs.bounds.empty() && arcs.bounds.front() == 0 &&
              arcs.bounds.back() * 2 == static_cast<std::int64_t>(pairs.size()) &&
              std::is_sorted(arcs.bounds.begin(), arcs.bounds.end()),
          "bounds and pairs do not fit each other");
  require(capacity >= 0, "capacity: expected no less than 0");
  std::vector<std::int32_t> misses;
  {
    nb::gil_scoped_release release;
    const auto num_batches = static_cast<std::int32_t>(arcs.bounds.size() - 1);
    const auto inside = [num_batches](UseCount count) { return 0 <= count.use && count.use < 2 * num_batches; };
    if (!std::all_of(arcs.counts.begin(), arcs.counts.end(), inside)) {
      throw std::out_of_range("next use out of range");
    }
    misses = belady_misses(arcs, capacity, from_empty);
  }
  return to_numpy(std::move(misses));
}

template <typename Node>
bool find_initial(BeladyPlanner& planner, In<Node> nodes, In<std::int32_t> next_uses) {
  require(nodes.size() == next_uses.size(), "nodes and next_uses differ in length");
  nb::gil_scoped_release release;
  require_in_range<Node>(span_of(nodes), 0, planner.num_nodes(), "node");
  require_next_uses(span_of(next_uses), planner.num_batches());
  return planner.find_initial(span_of(nodes), span_of(next_uses));
}

template <typename Node>
nb::tuple place(BeladyPlanner& planner, In<Node> nodes, In<std::int32_t> order, In<std::int32_t> next_uses) {
  require(nodes.size() == next_uses.size() && nodes.size() == order.size(),
          "nodes, order and next_uses differ in length");
  Placement<Node> placement;
  {
    nb::gil_scoped_release release;
    require_in_range<Node>(span_of(nodes), 0, planner.num_nodes(), "node");
    require_in_range<std::int32_t>(span_of(order), 0, nodes.size(), "order");
    require_next_uses(span_of(next_uses), planner.num_batches());
    placement = planner.place(span_of(nodes), span_of(order), span_of(next_uses));
  }
  return nb::make_tuple(to_numpy(std::move(placement.addresses)), to_numpy(std::move(placement.disk_nodes)),
                        to_numpy(std::move(placement.admissions)));
}

std::uint32_t start_extent_of(PageWriter& writer, const std::string& path, std::int64_t offset, Bytes header,
                              std::size_t padding_bytes, Out<std::uint8_t> tail) {
  require(padding_bytes < kDirectAlignment, "padding_bytes: expected less than 4096");
  require(offset >= 0 && offset % kDirectAlignment == 0, "offset: expected a multiple of 4096");
  require(tail.size() == kDirectAlignment, "tail: expected 4096 bytes");
  nb::gil_scoped_release release;
  return start_extent(writer, std::make_shared<const OutputFile>(path), offset,
                      std::as_bytes(std::span(header.data(), header.size())), padding_bytes,
                      std::as_writable_bytes(std::span(tail.data(), tail.size())));
}

// Holds the arrays of diskgnn::ExtentRows, so that Python keeps them alive and checks them once. Not the file: whoever
// keeps this after a failure would keep a deleted one's space.
class PythonExtentRows {
 public:
  PythonExtentRows(const std::string& path, nb::object nodes, In<std::int64_t> bounds, In<std::int64_t> offsets,
                   Out<std::int64_t> cursors, Out<std::uint32_t> checksums, Out<std::uint8_t> tails,
                   In<std::int64_t> padding_bytes, std::size_t row_bytes)
      : path_(path),
        bounds_(std::move(bounds)),
        offsets_(std::move(offsets)),
        cursors_(std::move(cursors)),
        checksums_(std::move(checksums)),
        tails_(std::move(tails)),
        padding_bytes_(std::move(padding_bytes)),
        row_bytes_(row_bytes) {
    if (In<std::int32_t> narrow; nb::try_cast(nodes, narrow, false)) {
      nodes_ = narrow;
    } else if (In<std::int64_t> wide; nb::try_cast(nodes, wide, false)) {
      nodes_ = wide;
    } else {
      throw nb::type_error("nodes: expected a C-contiguous int32 or int64 array");
    }
    const std::size_t num_extents = offsets_.size();
    require(bounds_.size() == num_extents + 1 && cursors_.size() == num_extents && checksums_.size() == num_extents &&
                tails_.size() == num_extents * kDirectAlignment && padding_bytes_.size() == num_extents,
            "bounds, offsets, cursors, checksums, tails and padding_bytes do not describe the same extents");
    const auto in_page = [](std::int64_t bytes) { return 0 <= bytes && bytes < std::int64_t{kDirectAlignment}; };
    require(std::ranges::all_of(span_of(padding_bytes_), in_page), "padding_bytes: expected less than 4096");
    require(row_bytes > 0, "row_bytes: expected more than 0");
  }

  std::size_t row_bytes() const { return row_bytes_; }

  // Calls `use` with the extents, while their file is open.
  template <typename Use>
  void with_file(const Use& use) const {
    std::visit(
        [&]<typename Node>(const In<Node>& nodes) {
          const ExtentRows<Node> extents{std::make_shared<const OutputFile>(path_),
                                         span_of(nodes),
                                         span_of(bounds_),
                                         span_of(offsets_),
                                         span_of(cursors_),
                                         span_of(checksums_),
                                         std::as_writable_bytes(span_of(tails_)),
                                         span_of(padding_bytes_),
                                         row_bytes_};
          use(extents);
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
  In<std::int64_t> padding_bytes_;
  std::size_t row_bytes_;
};

void pack_window_of(PageWriter& writer, const PythonExtentRows& extents, Bytes rows, In<std::int64_t> run_nodes,
                    In<std::int64_t> run_places, std::int64_t last_node, unsigned threads) {
  require(run_nodes.size() > 0 && run_nodes.size() == run_places.size(),
          "run_nodes and run_places: expected as many of both, at least one");
  const auto may_begin = [&](std::int64_t place) {
    return 0 <= place && static_cast<std::size_t>(place) + extents.row_bytes() <= rows.size();
  };
  require(std::ranges::all_of(span_of(run_places), may_begin), "run_places: expected a row at each place");
  nb::gil_scoped_release release;
  const RowWindow window{std::as_bytes(span_of(rows)), span_of(run_nodes), span_of(run_places), last_node};
  extents.with_file([&](const auto& found) { pack_window(writer, found, window, threads); });
}

void flush_tails_of(PageWriter& writer, const PythonExtentRows& extents) {
  nb::gil_scoped_release release;
  extents.with_file([&](const auto& found) { flush_tails(writer, found); });
}

std::uint32_t scatter_rows_of(int descriptor, std::int64_t offset, std::int64_t num_rows, In<std::int64_t> places,
                              In<std::int64_t> sources, Bytes window, std::size_t row_bytes, unsigned threads) {
  const auto inside = [&](std::int64_t source) { return 0 <= source && source + row_bytes <= window.size(); };
  require(places.size() == sources.size() && std::ranges::all_of(span_of(sources), inside),
          "sources: expected a row of the window for each place");
  const auto is_row = [&](std::int64_t place) { return 0 <= place && place < num_rows; };
  require(std::ranges::all_of(span_of(places), is_row), "places: expected rows of the file");
  nb::gil_scoped_release release;
  return scatter_rows(descriptor, offset, num_rows, span_of(places), span_of(sources), std::as_bytes(span_of(window)),
                      row_bytes, threads);
}

}  // namespace

void bind_packing(nb::module_& m) {
  const auto def_of_nodes = [&m]<typename Node>(Node) {
    m.def("count_nodes", &count_nodes_of<Node>, "counts"_a.noconvert(), "nodes"_a.noconvert());
    m.def("mark_nodes", &mark_nodes_of<Node>, "flags"_a.noconvert(), "nodes"_a.noconvert());
    m.def("sort_nodes", &sort_nodes_of<Node>, "nodes"_a.noconvert(), "num_nodes"_a);
    m.def("exchange_next_uses", &exchange_next_uses_of<Node>, "next_use"_a.noconvert(), "nodes"_a.noconvert(),
          "batch"_a, "first_node"_a = 0);
  };
  def_of_nodes(std::int32_t{});
  def_of_nodes(std::int64_t{});
  m.def("count_next_uses", &count_next_uses_of, "next_uses"_a.noconvert(), "num_batches"_a);
  m.def("belady_misses", &belady_misses_of, "bounds"_a.noconvert(), "pairs"_a.noconvert(), "capacity"_a,
        "from_empty"_a = false);
  nb::class_<BeladyPlanner>(m, "BeladyPlanner")
      .def(
          "__init__",
          [](BeladyPlanner* self, Out<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
             In<std::int32_t> misses, In<std::int32_t> first_uses) {
            require(misses.size() == first_uses.size(), "misses and first_uses differ in length");
            new (self) BeladyPlanner(span_of(location), num_static, capacity, span_of(misses), span_of(first_uses));
          },
          "location"_a.noconvert(), "num_static"_a, "capacity"_a, "misses"_a.noconvert(), "first_uses"_a.noconvert(),
          nb::keep_alive<1, 2>())
      .def("find_initial", &find_initial<std::int32_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("find_initial", &find_initial<std::int64_t>, "nodes"_a.noconvert(), "next_uses"_a.noconvert())
      .def("place", &place<std::int32_t>, "nodes"_a.noconvert(), "order"_a.noconvert(), "next_uses"_a.noconvert())
      .def("place", &place<std::int64_t>, "nodes"_a.noconvert(), "order"_a.noconvert(), "next_uses"_a.noconvert())
      .def("initial_cpu_nodes", [](BeladyPlanner& self) { return to_numpy(std::vector(self.initial_cpu_nodes())); })
      .def("next_cycle_slots", [](const BeladyPlanner& self) { return to_numpy(self.next_cycle_slots()); });
  nb::class_<PageWriter>(m, "PageWriter")
      .def(nb::init<>())
      .def("finish", &PageWriter::finish, nb::call_guard<nb::gil_scoped_release>())
      .def("close", &PageWriter::close, nb::call_guard<nb::gil_scoped_release>());
  m.def("start_extent", &start_extent_of, "writer"_a, "path"_a, "offset"_a, "header"_a.noconvert(), "padding_bytes"_a,
        "tail"_a.noconvert());
  nb::class_<PythonExtentRows>(m, "ExtentRows")
      .def(nb::init<const std::string&, nb::object, In<std::int64_t>, In<std::int64_t>, Out<std::int64_t>,
                    Out<std::uint32_t>, Out<std::uint8_t>, In<std::int64_t>, std::size_t>(),
           nb::kw_only(), "path"_a, "nodes"_a, "bounds"_a.noconvert(), "offsets"_a.noconvert(), "cursors"_a.noconvert(),
           "checksums"_a.noconvert(), "tails"_a.noconvert(), "padding_bytes"_a.noconvert(), "row_bytes"_a);
  m.def("pack_window", &pack_window_of, "writer"_a, "extents"_a, "rows"_a.noconvert(), "run_nodes"_a.noconvert(),
        "run_places"_a.noconvert(), "last_node"_a, "threads"_a);
  m.def("flush_tails", &flush_tails_of, "writer"_a, "extents"_a);
  m.def("scatter_rows", &scatter_rows_of, "descriptor"_a, "offset"_a, "num_rows"_a, "places"_a.noconvert(),
        "sources"_a.noconvert(), "window"_a.noconvert(), "row_bytes"_a, "threads"_a);
}

}  // namespace diskgnn
