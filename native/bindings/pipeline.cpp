// The online pipeline.
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>

#include "bindings/arrays.h"
#include "loading/extent_pipeline.h"

namespace diskgnn {
namespace {

// Keeps the arrays of the tiers alive for as long as the pipeline's threads use them.
class Pipeline {
 public:
  Pipeline(const std::string& path, In<std::int64_t> index, std::size_t row_bytes, std::int64_t num_device,
           std::int64_t num_static, Bytes pinned, Out<std::uint8_t> cpu, In<std::int32_t> wrap,
           const std::string& engine, std::size_t prefetch, unsigned threads, bool verify)
      : pinned_(pinned), cpu_(cpu), wrap_(wrap) {
    constexpr std::size_t kFields = sizeof(ExtentRecord) / sizeof(std::int64_t);
    if (index.size() % kFields != 0) throw std::invalid_argument("index: expected 10 numbers per extent");
    if (row_bytes == 0 || prefetch == 0 || threads == 0) {
      throw std::invalid_argument("row_bytes, prefetch and threads are at least 1");
    }
    std::vector<ExtentRecord> records(index.size() / kFields);
    if (!records.empty()) std::memcpy(records.data(), index.data(), index.size() * sizeof(std::int64_t));
    const Tiers tiers{row_bytes,
                      num_device,
                      num_static,
                      std::as_bytes(std::span(pinned_.data(), pinned_.size())),
                      std::as_writable_bytes(std::span(cpu_.data(), cpu_.size())),
                      span_of(wrap_)};
    pipeline_ = std::make_unique<ExtentPipeline>(DirectFile(path), std::move(records), tiers,
                                                 PipelineOptions{engine_kind(engine), prefetch, threads, verify});
  }

  Pipeline(Pipeline&&) = default;
  ~Pipeline() {
    if (pipeline_ != nullptr && !pipeline_->in_own_process()) static_cast<void>(pipeline_.release());
  }

  void start(std::int64_t position, std::int64_t count) {
    nb::gil_scoped_release release;
    pipeline_->start(position, count);
  }

  void set_order(In<std::int64_t> order) {
    const auto positions = span_of(order);
    pipeline_->set_order({positions.begin(), positions.end()});
  }

  void extend(std::int64_t count) { pipeline_->extend(count); }

  void rest() { pipeline_->buffers().rest(); }

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
    return nb::make_tuple(minibatch->position, view(buffer, buffer->header(), minibatch->header_bytes),
                          view(buffer, buffer->rows(), minibatch->num_staged * row_bytes()));
  }

  nb::dict stats() const {
    const PipelineStats stats = pipeline_->stats();
    nb::dict result;
    result["minibatches"] = stats.minibatches;
    result["requested_rows"] = stats.requested_rows;
    result["device_rows"] = stats.device_rows;
    result["pinned_rows"] = stats.pinned_rows;
    result["cpu_rows"] = stats.cpu_rows;
    result["disk_rows"] = stats.disk_rows;
    result["read_bytes"] = stats.read_bytes;
    result["read_requests"] = stats.read_requests;
    result["read_wait_seconds"] = stats.read_wait_seconds;
    result["header_seconds"] = stats.header_seconds;
    result["gather_seconds"] = stats.gather_seconds;
    result["scatter_seconds"] = stats.scatter_seconds;
    result["buffer_wait_seconds"] = stats.buffer_wait_seconds;
    result["wait_seconds"] = stats.consumer_wait_seconds;
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

  std::string engine() const { return pipeline_->engine_name(); }

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

  std::size_t row_bytes() const { return pipeline_->row_bytes(); }

  Bytes pinned_;
  Out<std::uint8_t> cpu_;
  In<std::int32_t> wrap_;
  std::unique_ptr<ExtentPipeline> pipeline_;
};

}  // namespace

void bind_pipeline(nb::module_& m) {
  m.attr("READ_AHEAD_BYTES") = kReadAheadBytes;
  nb::exception<DamagedExtent>(m, "DamagedExtentError", PyExc_RuntimeError);
  nb::class_<Pipeline>(m, "Pipeline")
      .def(nb::init<const std::string&, In<std::int64_t>, std::size_t, std::int64_t, std::int64_t, Bytes,
                    Out<std::uint8_t>, In<std::int32_t>, const std::string&, std::size_t, unsigned, bool>(),
           "path"_a, "index"_a.noconvert(), "row_bytes"_a, "num_device"_a, "num_static"_a, "pinned"_a.noconvert(),
           "cpu"_a.noconvert(), "wrap"_a.noconvert(), "engine"_a, "prefetch"_a, "threads"_a, "verify"_a)
      .def("start", &Pipeline::start, "position"_a, "count"_a)
      .def("set_order", &Pipeline::set_order, "order"_a.noconvert())
      .def("extend", &Pipeline::extend, "count"_a)
      .def("rest", &Pipeline::rest)
      .def("stop", &Pipeline::stop)
      .def("next", &Pipeline::next)
      .def("stats", &Pipeline::stats)
      .def("start_tracing", &Pipeline::start_tracing)
      .def("take_trace", &Pipeline::take_trace)
      .def("engine", &Pipeline::engine)
      .def("allocate_locked", &Pipeline::allocate_locked);
}

}  // namespace diskgnn
