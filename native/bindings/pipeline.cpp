// The online pipeline.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>

#include "bindings/arrays.h"
#include "files/block_check.h"
#include "files/byte_source.h"
#include "loading/extent_pipeline.h"

namespace diskgnn {
namespace {

// `RowFile` of checksums that Python owns.
struct RowFileArrays {
  std::string path;
  std::uint64_t data_offset;
  std::uint64_t row_bytes;
  std::int64_t num_rows;
  In<std::uint32_t> checksums;

  RowFile file() const { return {path, data_offset, row_bytes, num_rows, span_of(checksums)}; }
};

// `Tiers` of arrays that Python owns; kept alive for as long as a pipeline's threads use them.
struct TierArrays {
  std::size_t row_bytes;
  std::int64_t num_device;
  std::int64_t num_static;
  Bytes pinned;
  Out<std::uint8_t> cpu;
  In<std::int32_t> next_cycle_slots;
  std::optional<RowFileArrays> file;

  Tiers tiers(EngineKind engine) const {
    return {row_bytes,
            num_device,
            num_static,
            std::as_bytes(span_of(pinned)),
            std::as_writable_bytes(span_of(cpu)),
            span_of(next_cycle_slots),
            file.has_value() ? std::optional(file->file()) : std::nullopt,
            engine};
  }
};

// A request that a thread of Python has taken, and its memory until it is finished.
struct TakenRequest {
  ReadRequest request;

  nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>> destination() const {
    return {reinterpret_cast<std::uint8_t*>(request.destination.data()), {request.destination.size()}, nb::handle()};
  }
};

template <typename Record>
constexpr std::size_t kFields = sizeof(Record) / sizeof(std::int64_t);
using Extents = nb::ndarray<const std::int64_t, nb::shape<-1, kFields<ExtentRecord>>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const std::int64_t, nb::shape<-1, -1, kFields<RowsRecord>>, nb::c_contig, nb::device::cpu>;

template <typename Record, typename Index>
std::vector<Record> to_records(const Index& index) {
  std::vector<Record> records(index.size() / kFields<Record>);
  if (!records.empty()) std::memcpy(records.data(), index.data(), records.size() * sizeof(Record));
  return records;
}

class Pipeline {
 public:
  Pipeline(const std::string& path, const Extents& extents, const Rows& rows, const std::vector<TierArrays>& tiers,
           const PipelineOptions& options, EngineKind engine, std::shared_ptr<ReadRequests> requests,
           std::uint64_t num_bytes)
      : tiers_(tiers) {
    std::vector<Tiers> row_sets;
    for (const TierArrays& arrays : tiers_) row_sets.push_back(arrays.tiers(engine));
    std::unique_ptr<ByteSource> source;
    if (requests == nullptr) {
      source = std::make_unique<FileSource>(path, engine);
    } else {
      source = std::make_unique<RequestedSource>(path, num_bytes, std::move(requests));
    }
    pipeline_ = std::make_unique<ExtentPipeline>(std::move(source), to_records<ExtentRecord>(extents),
                                                 to_records<RowsRecord>(rows), row_sets, options);
  }

  Pipeline(Pipeline&&) = default;
  ~Pipeline() {
    if (pipeline_ != nullptr && !pipeline_->in_own_process()) static_cast<void>(pipeline_.release());
    nb::gil_scoped_release release;  // for threads of Python that bring what was asked for
    pipeline_.reset();
  }

  void start(std::int64_t position, std::int64_t count) {
    nb::gil_scoped_release release;
    pipeline_->start(position, count);
  }

  void set_order(In<std::int64_t> order) {
    const auto positions = span_of(order);
    pipeline_->set_order({positions.begin(), positions.end()});
  }

  void extend(std::int64_t count) {
    nb::gil_scoped_release release;
    pipeline_->extend(count);
  }

  void pause() {
    nb::gil_scoped_release release;
    pipeline_->pause();
  }

  void release_idle_buffers() { pipeline_->buffers().release_idle(); }

  void stop() {
    nb::gil_scoped_release release;
    pipeline_->stop();
  }

  nb::tuple next() {
    std::optional<StagedMinibatch> minibatch;
    while (!minibatch.has_value()) {
      {
        nb::gil_scoped_release release;
        minibatch = pipeline_->next(std::chrono::milliseconds(100));
      }
      if (PyErr_CheckSignals() != 0) throw nb::python_error();  // Ctrl-C while the disk is slow
    }
    const std::shared_ptr<Buffer>& buffer = minibatch->buffer;
    nb::list rows;
    for (const std::span<std::byte> of_set : minibatch->rows) rows.append(view(buffer, of_set.data(), of_set.size()));
    return nb::make_tuple(minibatch->position, minibatch->extent,
                          view(buffer, buffer->header(), minibatch->header_bytes), rows);
  }

  nb::dict stats() const {
    const PipelineStats stats = pipeline_->stats();
    nb::dict result;
    result["requested_rows"] = stats.rows.requested;
    result["device_rows"] = stats.rows.device;
    result["pinned_rows"] = stats.rows.pinned;
    result["cpu_rows"] = stats.rows.cpu;
    result["disk_rows"] = stats.rows.disk;
    result["read_bytes"] = stats.read_bytes;
    result["read_requests"] = stats.read_requests;
    result["read_wait_seconds"] = stats.read_wait_seconds;
    result["header_seconds"] = stats.header_seconds;
    result["gather_seconds"] = stats.gather_seconds;
    result["scatter_seconds"] = stats.scatter_seconds;
    result["buffer_wait_seconds"] = stats.buffer_wait_seconds;
    result["wait_seconds"] = stats.wait_seconds;
    return result;
  }

  void start_tracing() { pipeline_->start_tracing(); }

  nb::tuple take_trace() {
    const StageTrace::Taken taken = pipeline_->take_trace();
    nb::list events;
    for (const StageEvent& event : taken.events) {
      events.append(nb::make_tuple(stage_name(event.stage), event.position, event.start_ns, event.end_ns));
    }
    return nb::make_tuple(events, taken.lost);
  }

  nb::list allocate_locked() {
    nb::list regions;
    for (const std::span<std::byte> region : pipeline_->buffers().allocate_locked()) {
      regions.append(nb::make_tuple(reinterpret_cast<std::uintptr_t>(region.data()), region.size()));
    }
    return regions;
  }

 private:
  using View = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

  // Every array of a minibatch holds the lease; the buffer goes back when the last one is dropped.
  static View view(const std::shared_ptr<Buffer>& buffer, std::byte* data, std::size_t bytes) {
    auto* lease = new std::shared_ptr<Buffer>(buffer);
    nb::capsule owner(lease, [](void* pointer) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(pointer); });
    return View(reinterpret_cast<std::uint8_t*>(data), {bytes}, owner);
  }

  std::vector<TierArrays> tiers_;
  std::unique_ptr<ExtentPipeline> pipeline_;
};

// Where each field of the index records lies, as NumPy's dtypes of them must say.
nb::dict extent_fields() {
  nb::dict fields;
  fields["offset"] = offsetof(ExtentRecord, offset);
  fields["header_bytes"] = offsetof(ExtentRecord, header_bytes);
  fields["header_crc32c"] = offsetof(ExtentRecord, header_crc32c);
  return fields;
}

nb::dict rows_fields() {
  nb::dict fields;
  fields["rows_offset"] = offsetof(RowsRecord, rows_offset);
  fields["num_rows"] = offsetof(RowsRecord, num_rows);
  fields["num_inputs"] = offsetof(RowsRecord, num_inputs);
  fields["addresses_offset"] = offsetof(RowsRecord, addresses_offset);
  fields["num_admissions"] = offsetof(RowsRecord, num_admissions);
  fields["admissions_offset"] = offsetof(RowsRecord, admissions_offset);
  fields["rows_crc32c"] = offsetof(RowsRecord, rows_crc32c);
  return fields;
}

}  // namespace

void bind_pipeline(nb::module_& m) {
  m.attr("READ_AHEAD_BYTES") = kReadAheadBytes;
  nb::exception<DamagedExtent>(m, "DamagedExtentError", PyExc_RuntimeError);
  nb::exception<DamagedFile>(m, "DamagedFileError", PyExc_RuntimeError);
  m.attr("EXTENT_FIELDS") = extent_fields();
  m.attr("ROWS_FIELDS") = rows_fields();
  m.def(
      "check_block",
      [](In<std::int32_t> indptr, In<std::int32_t> indices, std::int64_t num_src) {
        const char* fault = nullptr;
        {
          nb::gil_scoped_release release;
          fault = block_fault(span_of(indptr), span_of(indices), num_src);
        }
        if (fault != nullptr) throw std::invalid_argument(fault);
      },
      "indptr"_a.noconvert(), "indices"_a.noconvert(), "num_src"_a);
  m.attr("READ_ALONG_BYTES") = kReadAlongBytes;
  nb::class_<RowFileArrays>(m, "RowFile")
      .def(
          "__init__",
          [](RowFileArrays* self, const std::string& path, std::uint64_t data_offset, std::uint64_t row_bytes,
             std::int64_t num_rows, In<std::uint32_t> checksums) {
            new (self) RowFileArrays{path, data_offset, row_bytes, num_rows, checksums};
          },
          nb::kw_only(), "path"_a, "data_offset"_a, "row_bytes"_a, "num_rows"_a, "checksums"_a.noconvert());
  nb::class_<TierArrays>(m, "Tiers")
      .def(
          "__init__",
          [](TierArrays* self, std::size_t row_bytes, std::int64_t num_device, std::int64_t num_static, Bytes pinned,
             Out<std::uint8_t> cpu, In<std::int32_t> next_cycle_slots, std::optional<RowFileArrays> file) {
            new (self) TierArrays{row_bytes, num_device, num_static, pinned, cpu, next_cycle_slots, std::move(file)};
          },
          nb::kw_only(), "row_bytes"_a, "num_device"_a, "num_static"_a, "pinned"_a.noconvert(), "cpu"_a.noconvert(),
          "next_cycle_slots"_a.noconvert(), "file"_a = nb::none());
  m.attr("REQUEST_BYTES") = kRequestBytes;
  m.attr("REQUEST_DEPTH") = kRequestDepth;
  nb::exception<FailedRequest>(m, "FailedRequestError", PyExc_RuntimeError);
  nb::class_<TakenRequest>(m, "ReadRequest")
      .def_prop_ro("offset", [](const TakenRequest& taken) { return taken.request.offset; })
      .def_prop_ro("destination", &TakenRequest::destination, nb::rv_policy::reference);
  nb::class_<ReadRequests>(m, "ReadRequests")
      .def(nb::init<>())
      .def("take",
           [](ReadRequests& self) -> std::optional<TakenRequest> {
             nb::gil_scoped_release release;
             const std::optional<ReadRequest> request = self.take();
             if (!request.has_value()) return std::nullopt;
             return TakenRequest{*request};
           })
      .def(
          "finish",
          [](ReadRequests& self, const TakenRequest& taken, bool failed) { self.finish(taken.request, failed); },
          "request"_a, "failed"_a)
      .def("close", &ReadRequests::close);
  nb::class_<PipelineOptions>(m, "PipelineOptions")
      .def(
          "__init__",
          [](PipelineOptions* self, std::size_t prefetch, unsigned threads, bool verify) {
            require(prefetch > 0 && threads > 0, "prefetch and threads are at least 1");
            new (self) PipelineOptions{prefetch, threads, verify};
          },
          nb::kw_only(), "prefetch"_a = 2, "threads"_a = 1, "verify"_a = true);
  nb::class_<Pipeline>(m, "Pipeline")
      .def(
          "__init__",
          [](Pipeline* self, const std::string& path, const Extents& extents, const Rows& rows,
             const std::vector<TierArrays>& tiers, const PipelineOptions& options, const std::string& engine,
             std::shared_ptr<ReadRequests> requests, std::uint64_t num_bytes) {
            new (self)
                Pipeline(path, extents, rows, tiers, options, engine_kind(engine), std::move(requests), num_bytes);
          },
          "path"_a, "extents"_a.noconvert(), "rows"_a.noconvert(), "tiers"_a, "options"_a, nb::kw_only(),
          "engine"_a = "auto", "requests"_a.none() = nb::none(), "num_bytes"_a = 0)
      .def("start", &Pipeline::start, "position"_a, "count"_a)
      .def("set_order", &Pipeline::set_order, "order"_a.noconvert())
      .def("extend", &Pipeline::extend, "count"_a)
      .def("pause", &Pipeline::pause)
      .def("release_idle_buffers", &Pipeline::release_idle_buffers)
      .def("stop", &Pipeline::stop)
      .def("next", &Pipeline::next)
      .def("stats", &Pipeline::stats)
      .def("start_tracing", &Pipeline::start_tracing)
      .def("take_trace", &Pipeline::take_trace)
      .def("allocate_locked", &Pipeline::allocate_locked);
}

}  // namespace diskgnn
