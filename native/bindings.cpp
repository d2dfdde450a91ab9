// The only file that knows Python: it checks shapes, releases the GIL and translates errors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "belady.h"
#include "crc32c.h"
#include "direct_file.h"
#include "extent_packer.h"
#include "neighbor_sampler.h"
#include "read_engine.h"
#include "read_rate.h"

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
          nb::list blocks;
          for (SampledBlock& block : sampled.blocks) {
            blocks.append(nb::make_tuple(to_numpy(std::move(block.indptr)), to_numpy(std::move(block.indices))));
          }
          return nb::make_tuple(to_numpy(std::move(sampled.input_nodes)), blocks);
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

}  // namespace
}  // namespace diskgnn

NB_MODULE(_native, m) {
  using namespace diskgnn;
  nb::register_exception_translator(translate_system_error);

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

  nb::class_<NeighborSampler>(m, "NeighborSampler")
      .def(nb::init<In<std::int64_t>, nb::object>(), "indptr"_a.noconvert(), "indices"_a.noconvert())
      .def("sample", &NeighborSampler::sample, "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "key"_a, "minibatch"_a);

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
}
