// Rows by node: caches, random reads, gathering from memory maps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <optional>

#include "baselines/row_cache.h"
#include "baselines/row_gather.h"
#include "bindings/arrays.h"
#include "files/record_features.h"
#include "files/row_copy.h"
#include "files/row_io.h"
#include "files/row_widening.h"

namespace diskgnn {
namespace {

// Calls `work` with nodes as In<std::int32_t> or In<std::int64_t>.
template <typename Work>
auto with_nodes(const nb::object& nodes, const Work& work) {
  if (In<std::int32_t> narrow; nb::try_cast(nodes, narrow, false)) return work(narrow);
  if (In<std::int64_t> wide; nb::try_cast(nodes, wide, false)) return work(wide);
  throw nb::type_error("nodes: expected a C-contiguous int32 or int64 array [U]");
}

nb::tuple lookup(RowCache& self, const nb::object& nodes) {
  return with_nodes(nodes, [&]<typename Node>(const In<Node>& wanted) {
    std::vector<std::int32_t> slots(wanted.size()), admissions;
    {
      nb::gil_scoped_release release;
      self.lookup<Node>(span_of(wanted), slots, admissions);
    }
    return nb::make_tuple(to_numpy(std::move(slots)), to_numpy(std::move(admissions)));
  });
}

std::span<std::byte> bytes_of(const Out<std::uint8_t>& array) {
  return std::as_writable_bytes(std::span(array.data(), array.size()));
}

nb::tuple gather_through(RowReader& self, const nb::object& nodes, In<std::int32_t> slots, In<std::int32_t> admissions,
                         Out<std::uint8_t> cache, Out<std::uint8_t> x) {
  const ReadCounts counts = with_nodes(nodes, [&]<typename Node>(const In<Node>& wanted) {
    require(slots.size() == wanted.size(), "slots and nodes differ in length");
    require(admissions.size() % 2 == 0, "admissions are pairs");
    require(x.size() == wanted.size() * self.row_bytes(), "x has not the size of its rows");
    nb::gil_scoped_release release;
    return gather_cached<Node>(self, span_of(wanted), span_of(slots), span_of(admissions), bytes_of(cache),
                               bytes_of(x).data());
  });
  return nb::make_tuple(counts.requests, counts.bytes);
}

void gather_mapped(Bytes source, std::uint64_t row_bytes, const nb::object& nodes, Out<std::uint8_t> x,
                   unsigned threads) {
  require(row_bytes > 0 && threads > 0, "rows of no bytes, or no threads");
  with_nodes(nodes, [&]<typename Node>(const In<Node>& wanted) {
    require(x.size() == wanted.size() * row_bytes, "x has not the size of its rows");
    nb::gil_scoped_release release;
    gather_rows<Node>(std::as_bytes(span_of(source)), row_bytes, span_of(wanted), bytes_of(x).data(), threads);
  });
}

void copy_places(Bytes source, std::size_t row_bytes, In<std::int64_t> places, Out<std::uint8_t> x) {
  require(x.size() == places.size() * row_bytes, "x has not the size of its rows");
  nb::gil_scoped_release release;
  copy_rows_at(std::as_bytes(span_of(source)), span_of(places), row_bytes, bytes_of(x).data());
}

void copy_to_places(Bytes rows, std::size_t row_bytes, In<std::int64_t> places,
                    const std::vector<Out<std::uint8_t>>& segments, std::size_t segment_bytes) {
  require(segment_bytes > 0, "segment_bytes: expected at least 1");
  require(rows.size() == places.size() * row_bytes, "rows and places differ in number");
  std::vector<std::span<std::byte>> targets;
  for (const Out<std::uint8_t>& segment : segments) {
    require(segment.size() <= segment_bytes, "a segment has more than segment_bytes");
    targets.push_back(bytes_of(segment));
  }
  nb::gil_scoped_release release;
  copy_rows_to(std::as_bytes(span_of(rows)), row_bytes, span_of(places), targets, segment_bytes);
}

void dequantise(Bytes codes, unsigned bits, In<float> scale, In<float> zero_point, Out<float> out, unsigned threads) {
  require(bits == 4 || bits == 8, "bits: expected 4 or 8");
  require(scale.size() > 0 && threads > 0, "rows of no columns, or no threads");
  require(zero_point.size() == scale.size(), "scale and zero_point differ in length");
  require(out.size() % scale.size() == 0, "out has not the size of its rows");
  const std::size_t num_rows = out.size() / scale.size();
  require(codes.size() == num_rows * code_row_bytes(bits, scale.size()), "codes have not as many rows as out");
  nb::gil_scoped_release release;
  dequantise_rows(span_of(codes), bits, span_of(scale), span_of(zero_point), span_of(out), threads);
}

template <typename Record, typename Number>
std::vector<Record> to_records(const In<Number>& numbers) {
  constexpr std::size_t kFields = sizeof(Record) / sizeof(Number);
  require(numbers.size() % kFields == 0, "columns and scales have not the numbers that they should");
  std::vector<Record> records(numbers.size() / kFields);
  if (!records.empty()) std::memcpy(records.data(), numbers.data(), records.size() * sizeof(Record));
  return records;
}

void fill_record_features(Bytes records, std::size_t row_bytes, In<std::int64_t> columns, In<double> scales,
                          In<float> code_scale, In<float> code_zero_point, std::optional<In<std::int32_t>> places,
                          Out<float> out, unsigned threads) {
  require(row_bytes > 0 && threads > 0, "records of no bytes, or no threads");
  require(records.size() % row_bytes == 0, "records are not whole");
  const auto what = to_records<FeatureColumn>(columns);
  const auto scaled = to_records<FeatureScale>(scales);
  const RecordFeatures features{row_bytes, what, scaled, span_of(code_scale), span_of(code_zero_point)};
  features.require_sound();
  const std::size_t num_rows = places.has_value() ? places->size() : records.size() / row_bytes;
  require(out.size() == num_rows * features.width(), "out has not the size of its rows");
  nb::gil_scoped_release release;
  features.fill(span_of(records), places.has_value() ? span_of(*places) : std::span<const std::int32_t>(),
                places.has_value(), span_of(out), threads);
}

void read_file_rows(int descriptor, std::uint64_t row_bytes, In<std::int64_t> rows, Out<std::uint8_t> x) {
  require(x.size() == rows.size() * row_bytes, "x has not the size of its rows");
  nb::gil_scoped_release release;
  read_rows(descriptor, row_bytes, span_of(rows), bytes_of(x).data());
}

void write_file_rows(int descriptor, std::uint64_t row_bytes, In<std::int64_t> rows, Bytes x) {
  require(x.size() == rows.size() * row_bytes, "x has not the size of its rows");
  nb::gil_scoped_release release;
  write_rows(descriptor, row_bytes, span_of(rows), std::as_bytes(span_of(x)).data());
}

}  // namespace

void bind_rows(nb::module_& m) {
  nb::class_<RowCache>(m, "RowCache")
      .def(nb::new_(&make_row_cache), "policy"_a, "num_nodes"_a, "capacity"_a)
      .def("lookup", &lookup, "nodes"_a);
  nb::class_<RowReader>(m, "RowReader")
      .def(
          "__init__",
          [](RowReader* self, const std::string& path, std::uint64_t data_offset, std::uint64_t row_bytes,
             std::int64_t num_rows, const std::string& engine) {
            new (self) RowReader({path, data_offset, row_bytes, num_rows}, engine_kind(engine));
          },
          "path"_a, "data_offset"_a, "row_bytes"_a, "num_rows"_a, "engine"_a = "auto")
      .def("gather", &gather_through, "nodes"_a, "slots"_a.noconvert(), "admissions"_a.noconvert(),
           "cache"_a.noconvert(), "x"_a.noconvert())
      .def_prop_ro("engine", &RowReader::engine);
  m.def("gather_rows", &gather_mapped, "source"_a.noconvert(), "row_bytes"_a, "nodes"_a, "x"_a.noconvert(),
        "threads"_a);
  m.def("copy_rows_at", &copy_places, "source"_a.noconvert(), "row_bytes"_a, "places"_a.noconvert(), "x"_a.noconvert());
  m.def("copy_rows_to", &copy_to_places, "rows"_a.noconvert(), "row_bytes"_a, "places"_a.noconvert(),
        "segments"_a.noconvert(), "segment_bytes"_a);
  m.def("read_file_rows", &read_file_rows, "descriptor"_a, "row_bytes"_a, "rows"_a.noconvert(), "x"_a.noconvert());
  m.def("write_file_rows", &write_file_rows, "descriptor"_a, "row_bytes"_a, "rows"_a.noconvert(), "x"_a.noconvert());
  m.def("fill_record_features", &fill_record_features, "records"_a.noconvert(), "row_bytes"_a, "columns"_a.noconvert(),
        "scales"_a.noconvert(), "code_scale"_a.noconvert(), "code_zero_point"_a.noconvert(),
        "places"_a.noconvert().none(), "out"_a.noconvert(), "threads"_a);
  m.def("dequantise_rows", &dequantise, "codes"_a.noconvert(), "bits"_a, "scale"_a.noconvert(),
        "zero_point"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
}

}  // namespace diskgnn
