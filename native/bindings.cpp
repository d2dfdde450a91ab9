// The only file that knows Python: it checks shapes, releases the GIL and translates errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "belady.h"
#include "crc32c.h"
#include "csc_builder.h"
#include "direct_file.h"
#include "extent_packer.h"
#include "extent_pipeline.h"
#include "graph_generator.h"
#include "neighbor_sampler.h"
#include "read_engine.h"
#include "read_rate.h"
#include "sweep_sampler.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace diskgnn {
namespace {

// A buffer of bytes that Python owns; read-only ones are welcome.
using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// nanobind turns std::system_error into RuntimeError and drops errno: raise the OSError that Python has for it.
void translate_system_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::system_error& error) {
    nb::object args = nb::make_tuple(error.code().value(), error.what());
    PyErr_SetObject(PyExc_OSError, args.ptr());
  }
}

template <typename T>
using In = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> span_of(const In<T>& array) {
  return {array.data(), array.size()};
}

// A NumPy array that owns what was a vector, without copying it.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

template <typename Node>
nb::tuple to_tuple(SampledMinibatch<Node>&& sampled) {
  nb::list blocks;
  for (SampledBlock& block : sampled.blocks) {
    blocks.append(nb::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices))));
  }
  return nb::make_tuple(to_numpy(std::move(sampled.input_nodes)), blocks);
}

// Holds the topology's arrays, so that Python keeps them alive and checks their dtypes once.
class NeighborSampler {
 public:
  NeighborSampler(In<std::int64_t> indptr, nb::object indices) : indptr_(std::move(indptr)) {
    if (indptr_.size() == 0) throw std::invalid_argument("indptr is empty; expected N + 1 offsets");
    if (In<std::int32_t> narrow; nb::try_cast(indices, narrow, false)) {
      indices_ = narrow;
    } else if (In<std::int64_t> wide; nb::try_cast(indices, wide, false)) {
      indices_ = wide;
    } else {
      throw nb::type_error("indices: expected a C-contiguous int32 or int64 array [E]");
    }
    const auto num_edges = static_cast<std::int64_t>(std::visit([](const auto& a) { return a.size(); }, indices_));
    if (indptr_(0) != 0 || indptr_(indptr_.size() - 1) != num_edges) {
      throw std::invalid_argument("indptr must run from 0 to the number of indices, " + std::to_string(num_edges));
    }
  }

  nb::tuple sample(In<std::int64_t> seeds, In<std::int32_t> fanouts, std::uint64_t key, std::uint64_t minibatch) const {
    return std::visit(
        [&]<typename Node>(const In<Node>& indices) {
          SampledMinibatch<Node> sampled;
          {
            nb::gil_scoped_release release;
            sampled = sample_minibatch<Node>(span_of(indptr_), span_of(indices), span_of(seeds), span_of(fanouts),
                                             {key, minibatch});
          }
          return to_tuple(std::move(sampled));
        },
        indices_);
  }

 private:
  In<std::int64_t> indptr_;
  std::variant<In<std::int32_t>, In<std::int64_t>> indices_;
};

template <typename T>
using Out = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename Node>
nb::ndarray<nb::numpy, std::int32_t, nb::ndim<1>> exchange(Out<std::int32_t> next_use, In<Node> nodes,
                                                           std::int32_t batch) {
  std::vector<std::int32_t> before;
  {
    nb::gil_scoped_release release;
    for (const Node node : span_of(nodes)) {
      if (node < 0 || static_cast<std::size_t>(node) >= next_use.size()) throw std::out_of_range("node out of range");
    }
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

EngineKind engine_kind(const std::string& name) {
  if (name == "auto") return EngineKind::kAuto;
  if (name == "io_uring") return EngineKind::kIoUring;
  if (name == "threads") return EngineKind::kThreads;
  throw std::invalid_argument("engine: expected auto, io_uring or threads, found " + name);
}

void read_ranges_into(const std::string& path, const std::string& engine, In<std::int64_t> offsets,
                      In<std::int64_t> lengths, std::uint64_t base, Out<std::uint8_t> destination) {
  if (offsets.size() != lengths.size()) throw std::invalid_argument("offsets and lengths differ in length");
  std::vector<ByteRange> ranges(offsets.size());
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (offsets(i) < 0 || lengths(i) < 0 || offsets(i) > std::numeric_limits<std::int64_t>::max() - lengths(i)) {
      throw std::invalid_argument("offsets and lengths are at least 0");
    }
    ranges[i] = {static_cast<std::uint64_t>(offsets(i)), static_cast<std::uint64_t>(lengths(i))};
  }
  nb::gil_scoped_release release;
  const DirectFile file(path);
  read_ranges(file, engine_kind(engine), ranges, base,
              std::as_writable_bytes(std::span(destination.data(), destination.size())));
}

template <typename Node>
void pack_partition_of(int descriptor, In<Node> nodes, In<std::int64_t> bounds, In<std::int64_t> offsets,
                       Out<std::int64_t> cursors, Out<std::uint32_t> checksums, Bytes partition,
                       std::int64_t first_node, std::int64_t last_node, std::size_t row_bytes, unsigned threads) {
  const std::size_t num_extents = offsets.size();
  if (bounds.size() != num_extents + 1 || cursors.size() != num_extents || checksums.size() != num_extents) {
    throw std::invalid_argument("bounds, offsets, cursors and checksums do not describe the same extents");
  }
  if (last_node < first_node || partition.size() < static_cast<std::size_t>(last_node - first_node) * row_bytes) {
    throw std::invalid_argument("the partition holds fewer rows than [first_node, last_node)");
  }
  nb::gil_scoped_release release;
  const ExtentRows<Node> extents{descriptor,
                                 span_of(nodes),
                                 span_of(bounds),
                                 span_of(offsets),
                                 {cursors.data(), num_extents},
                                 {checksums.data(), num_extents}};
  pack_partition(extents, std::as_bytes(std::span(partition.data(), partition.size())), first_node, last_node,
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
    result["read_wait_seconds"] = stats.read_wait_seconds;
    result["header_seconds"] = stats.header_seconds;
    result["gather_seconds"] = stats.gather_seconds;
    result["scatter_seconds"] = stats.scatter_seconds;
    result["buffer_wait_seconds"] = stats.buffer_wait_seconds;
    result["wait_seconds"] = stats.consumer_wait_seconds;
    return result;
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

// csc_builder
template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class Index>
using EdgeArray = nb::ndarray<Index, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<T> as_span(const Array<T>& array) {
  return {array.data(), array.size()};
}

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

template <class Id>
void bind_count_edges(nb::module_& m) {
  m.def(
      "count_edges",
      [](Array<const Id> src, Array<const Id> dst, std::int64_t num_nodes, int shift, Array<std::int64_t> bin_edges) {
        require(src.size() == dst.size(), "src and dst differ in length");
        require(num_nodes == 0 || static_cast<std::uint64_t>(num_nodes - 1) >> shift < bin_edges.size(),
                "fewer bins than the nodes need");
        nb::gil_scoped_release release;
        return count_edges<Id>(as_span(src), as_span(dst), num_nodes, shift, as_span(bin_edges));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "num_nodes"_a, "shift"_a, "bin_edges"_a.noconvert());
}

template <class Id, class Index>
void bind_scatter_edges(nb::module_& m) {
  m.def(
      "scatter_edges",
      [](Array<const Id> src, Array<const Id> dst, std::int64_t first, std::int64_t num_nodes, int shift,
         Array<const std::int32_t> bucket_of_bin, EdgeArray<Index> buffer, Array<std::int64_t> cursors,
         Array<const std::int64_t> ends) {
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
        return scatter_edges<Id, Index>(as_span(src), as_span(dst), first, num_nodes, shift, as_span(bucket_of_bin),
                                        edges, as_span(cursors), as_span(ends));
      },
      "src"_a.noconvert(), "dst"_a.noconvert(), "first"_a, "num_nodes"_a, "shift"_a, "bucket_of_bin"_a.noconvert(),
      "buffer"_a.noconvert(), "cursors"_a.noconvert(), "ends"_a.noconvert());
}

template <class Index>
void bind_sort_bucket(nb::module_& m) {
  m.def(
      "sort_bucket",
      [](EdgeArray<const Index> edges, std::int64_t first_node, bool self_loops, bool drop_duplicates,
         Array<std::int64_t> degrees, Array<Index> indices) {
        const std::size_t room = edges.shape(0) + (self_loops ? degrees.size() : 0);
        require(indices.size() >= room, "indices is too short");
        nb::gil_scoped_release release;
        std::span bucket(reinterpret_cast<const Edge<Index>*>(edges.data()), edges.shape(0));
        return sort_bucket<Index>(bucket, first_node, self_loops, drop_duplicates, as_span(degrees), as_span(indices));
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

// graph_generator
template <class Node>
void generate_edges(const GraphGenerator& generator, std::uint64_t first, Array<Node> src, Array<Node> dst) {
  require(src.size() == dst.size(), "src and dst differ in length");
  nb::gil_scoped_release release;
  generator.edges(first, as_span(src), as_span(dst));
}

template <auto Fill>
void generate_values(const GraphGenerator& generator, std::uint64_t first, Array<std::int64_t> out) {
  nb::gil_scoped_release release;
  (generator.*Fill)(first, as_span(out));
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
             std::uint64_t feature_width, double feature_signal, std::uint64_t seed) {
            require(num_classes > 0 && num_nodes / 2 >= num_classes, "fewer than two nodes per class");
            new (self) GraphGenerator({num_nodes, num_classes, homophily, feature_width, feature_signal, seed});
          },
          nb::kw_only(), "num_nodes"_a, "num_classes"_a, "homophily"_a, "feature_width"_a, "feature_signal"_a, "seed"_a)
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

// sweep_sampler
template <typename Node>
void bind_expansion(nb::module_& m, const char* name, nb::class_<TopologySweep>& sweep) {
  using Group = std::vector<Expansion<Node>*>;
  nb::class_<Expansion<Node>>(m, name)
      .def(
          "__init__",
          [](Expansion<Node>* self, In<std::int64_t> seeds, In<std::int32_t> fanouts, std::uint64_t key,
             std::uint64_t minibatch, std::int64_t num_nodes) {
            require(fanouts.size() > 0, "fanouts is empty");
            const std::span<const std::int32_t> layers = span_of(fanouts);
            new (self) Expansion<Node>(span_of(seeds), {layers.begin(), layers.end()}, {key, minibatch}, num_nodes);
          },
          "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "key"_a, "minibatch"_a, "num_nodes"_a)
      .def("relabel", &Expansion<Node>::relabel, nb::call_guard<nb::gil_scoped_release>())
      .def("take", [](Expansion<Node>& self) { return to_tuple(self.take()); })
      .def_prop_ro("layer", &Expansion<Node>::layer)
      .def_prop_ro("memory_bytes", &Expansion<Node>::memory_bytes)
      .def_prop_ro("drawn_bytes", &Expansion<Node>::drawn_bytes)
      .def_prop_ro("relabel_bytes", &Expansion<Node>::relabel_bytes)
      .def_prop_ro("next_layer_bytes", &Expansion<Node>::next_layer_bytes);
  sweep
      .def(
          "count", [](TopologySweep& self, const Group& group) { self.count<Node>(group); }, "group"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def(
          "draw", [](TopologySweep& self, const Group& group) { self.draw<Node>(group); }, "group"_a,
          nb::call_guard<nb::gil_scoped_release>());
}

void bind_sweep_sampler(nb::module_& m) {
  nb::class_<TopologySweep> sweep(m, "TopologySweep");
  sweep
      .def(
          "__init__",
          [](TopologySweep* self, const std::string& indptr_path, std::uint64_t indptr_offset,
             const std::string& indices_path, std::uint64_t indices_offset, std::int64_t num_nodes,
             std::int64_t num_edges, const std::string& engine, std::size_t window_bytes, unsigned threads) {
            new (self) TopologySweep({DirectFile(indptr_path), indptr_offset, DirectFile(indices_path), indices_offset,
                                      num_nodes, num_edges},
                                     engine_kind(engine), window_bytes, threads);
          },
          nb::kw_only(), "indptr_path"_a, "indptr_offset"_a, "indices_path"_a, "indices_offset"_a, "num_nodes"_a,
          "num_edges"_a, "engine"_a, "window_bytes"_a, "threads"_a)
      .def("stop", &TopologySweep::stop)
      .def_prop_ro("read_bytes", &TopologySweep::read_bytes);
  sweep.attr("READERS_PER_THREAD") = TopologySweep::kReadersPerThread;
  bind_expansion<std::int32_t>(m, "Expansion32", sweep);
  bind_expansion<std::int64_t>(m, "Expansion64", sweep);
}

}  // namespace
}  // namespace diskgnn

NB_MODULE(_native, m) {
  using namespace diskgnn;
  nb::register_exception_translator(translate_system_error);
  nb::set_leak_warnings(false);  // a Loader that is alive when the interpreter ends is no leak

#ifdef DISKGNN_HAVE_LIBURING
  m.attr("HAVE_LIBURING") = true;
#else
  m.attr("HAVE_LIBURING") = false;
#endif

  m.def(
      "measure_reads",
      [](const std::string& path, In<std::uint64_t> offsets, std::uint64_t bytes_each, unsigned depth,
         double max_seconds, const std::string& engine) {
        ReadRate rate;
        {
          nb::gil_scoped_release release;
          rate = measure_reads(DirectFile(path), engine_kind(engine), span_of(offsets), bytes_each, depth, max_seconds);
        }
        return nb::make_tuple(rate.engine, rate.direct, rate.read_bytes, rate.seconds);
      },
      "path"_a, "offsets"_a.noconvert(), "bytes_each"_a, "depth"_a, "max_seconds"_a, "engine"_a = "auto");

  m.def(
      "crc32c",
      [](Bytes data, std::uint32_t crc) {
        nb::gil_scoped_release release;
        return crc32c(std::as_bytes(std::span(data.data(), data.size())), crc);
      },
      "data"_a, "crc"_a = 0);

  bind_csc_builder(m);
  nb::class_<NeighborSampler>(m, "NeighborSampler")
      .def(nb::init<In<std::int64_t>, nb::object>(), "indptr"_a.noconvert(), "indices"_a.noconvert())
      .def("sample", &NeighborSampler::sample, "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "key"_a, "minibatch"_a);

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

  m.def("crc32c_combine", &crc32c_combine, "crc_a"_a, "crc_b"_a, "bytes_b"_a);
  m.def("io_uring_refusal", &io_uring_refusal);
  m.def("read_ranges", &read_ranges_into, "path"_a, "engine"_a, "offsets"_a.noconvert(), "lengths"_a.noconvert(),
        "base"_a, "destination"_a.noconvert());
  const auto def_pack_partition = [&m](auto function) {
    m.def("pack_partition", function, "descriptor"_a, "nodes"_a.noconvert(), "bounds"_a.noconvert(),
          "offsets"_a.noconvert(), "cursors"_a.noconvert(), "checksums"_a.noconvert(), "partition"_a.noconvert(),
          "first_node"_a, "last_node"_a, "row_bytes"_a, "threads"_a);
  };
  def_pack_partition(&pack_partition_of<std::int32_t>);
  def_pack_partition(&pack_partition_of<std::int64_t>);
  m.def("scatter_rows", &scatter_rows_of, "descriptor"_a, "offset"_a, "places"_a.noconvert(), "sources"_a.noconvert(),
        "partition"_a.noconvert(), "row_bytes"_a, "threads"_a);

  nb::exception<DamagedExtent>(m, "DamagedExtentError", PyExc_RuntimeError);
  nb::class_<Pipeline>(m, "Pipeline")
      .def(nb::init<const std::string&, In<std::int64_t>, std::size_t, std::int64_t, std::int64_t, Bytes,
                    Out<std::uint8_t>, In<std::int32_t>, const std::string&, std::size_t, unsigned, bool>(),
           "path"_a, "index"_a.noconvert(), "row_bytes"_a, "num_device"_a, "num_static"_a, "pinned"_a.noconvert(),
           "cpu"_a.noconvert(), "wrap"_a.noconvert(), "engine"_a, "prefetch"_a, "threads"_a, "verify"_a)
      .def("start", &Pipeline::start, "position"_a, "count"_a)
      .def("extend", &Pipeline::extend, "count"_a)
      .def("rest", &Pipeline::rest)
      .def("stop", &Pipeline::stop)
      .def("next", &Pipeline::next)
      .def("stats", &Pipeline::stats)
      .def("engine", &Pipeline::engine)
      .def("allocate_locked", &Pipeline::allocate_locked);
  bind_graph_generator(m);
  bind_sweep_sampler(m);
}
