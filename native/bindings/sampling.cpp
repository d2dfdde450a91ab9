// Sampling, in memory and by sweeps.
#include <nanobind/stl/optional.h>

#include <optional>
#include <variant>

#include "bindings/arrays.h"
#include "sampling/label_propagation.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/sweep_sampler.h"
#include "storage/direct_file.h"

namespace diskgnn {
namespace {

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

  // In-neighbours of some nodes in memory: starts [N] in `neighbors`, -1 for the other nodes.
  void cache_neighbors(In<std::int64_t> starts, nb::object neighbors) {
    require(starts.size() + 1 == indptr_.size(), "starts: expected one per node");
    std::visit(
        [&]<typename Node>(const In<Node>&) {
          In<Node> found;
          if (!nb::try_cast(neighbors, found, false)) throw nb::type_error("neighbors: expected the dtype of indices");
          cached_ = found;
        },
        indices_);
    starts_ = std::move(starts);
  }

  nb::tuple sample(In<std::int64_t> seeds, In<std::int32_t> fanouts, std::uint64_t key, std::uint64_t minibatch,
                   std::optional<std::uint64_t> slice_start) const {
    return std::visit(
        [&]<typename Node>(const In<Node>& indices) {
          SampledMinibatch<Node> sampled;
          {
            nb::gil_scoped_release release;
            NeighborCache<Node> cache;
            if (starts_.size() > 0) cache = {span_of(starts_), span_of(std::get<In<Node>>(cached_))};
            sampled = sample_minibatch<Node>(span_of(indptr_), span_of(indices), span_of(seeds), span_of(fanouts),
                                             {key, minibatch, slice_start}, cache);
          }
          return to_tuple(std::move(sampled));
        },
        indices_);
  }

 private:
  In<std::int64_t> indptr_;
  std::variant<In<std::int32_t>, In<std::int64_t>> indices_;
  In<std::int64_t> starts_;
  std::variant<In<std::int32_t>, In<std::int64_t>> cached_;
};

template <typename Node>
void bind_expansion(nb::module_& m, const char* name, nb::class_<TopologySweep>& sweep) {
  using Group = std::vector<Expansion<Node>*>;
  nb::class_<Expansion<Node>>(m, name)
      .def(
          "__init__",
          [](Expansion<Node>* self, In<std::int64_t> seeds, In<std::int32_t> fanouts, std::uint64_t key,
             std::uint64_t minibatch, std::int64_t num_nodes, std::optional<std::uint64_t> slice_start) {
            require(fanouts.size() > 0, "fanouts is empty");
            const std::span<const std::int32_t> layers = span_of(fanouts);
            new (self) Expansion<Node>(span_of(seeds), {layers.begin(), layers.end()}, {key, minibatch, slice_start},
                                       num_nodes);
          },
          "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "key"_a, "minibatch"_a, "num_nodes"_a,
          "slice_start"_a = nb::none())
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
  nb::class_<TopologyFiles>(m, "TopologyFiles")
      .def(
          "__init__",
          [](TopologyFiles* self, const std::string& indptr_path, std::uint64_t indptr_offset,
             const std::string& indices_path, std::uint64_t indices_offset, std::int64_t num_nodes,
             std::int64_t num_edges) {
            new (self) TopologyFiles{DirectFile(indptr_path), indptr_offset, DirectFile(indices_path),
                                     indices_offset,          num_nodes,     num_edges};
          },
          nb::kw_only(), "indptr_path"_a, "indptr_offset"_a, "indices_path"_a, "indices_offset"_a, "num_nodes"_a,
          "num_edges"_a);
  nb::class_<TopologySweep> sweep(m, "TopologySweep");
  sweep
      .def(
          "__init__",
          [](TopologySweep* self, const TopologyFiles& files, const std::string& engine, std::size_t window_bytes,
             unsigned threads) { new (self) TopologySweep(files, engine_kind(engine), window_bytes, threads); },
          "files"_a, nb::kw_only(), "engine"_a, "window_bytes"_a, "threads"_a, nb::keep_alive<1, 2>())
      .def("stop", &TopologySweep::stop)
      .def_prop_ro("read_bytes", &TopologySweep::read_bytes);
  sweep.attr("READERS_PER_THREAD") = TopologySweep::kReadersPerThread;
  bind_expansion<std::int32_t>(m, "Expansion32", sweep);
  bind_expansion<std::int64_t>(m, "Expansion64", sweep);
}

template <typename Node>
void propagate_labels(Out<Node> labels, Out<std::int32_t> sizes, std::int32_t most_nodes, std::size_t first,
                      In<std::int64_t> offsets, In<Node> neighbors) {
  require(labels.size() == sizes.size(), "sizes: expected one per label");
  nb::gil_scoped_release release;
  LabelPropagation<Node>(span_of(labels), span_of(sizes), most_nodes)
      .visit(first, span_of(offsets), span_of(neighbors));
}

template <typename Node>
void bind_label_propagation(nb::module_& m) {
  m.def("propagate_labels", &propagate_labels<Node>, "labels"_a.noconvert(), "sizes"_a.noconvert(), "most_nodes"_a,
        "first"_a, "offsets"_a.noconvert(), "neighbors"_a.noconvert());
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.attr("MOST_LABEL_NEIGHBORS") = LabelPropagation<std::int32_t>::kMostNeighbors;
  bind_label_propagation<std::int32_t>(m);
  bind_label_propagation<std::int64_t>(m);
  nb::class_<NeighborSampler>(m, "NeighborSampler")
      .def(nb::init<In<std::int64_t>, nb::object>(), "indptr"_a.noconvert(), "indices"_a.noconvert())
      .def("cache_neighbors", &NeighborSampler::cache_neighbors, "starts"_a.noconvert(), "neighbors"_a)
      .def("sample", &NeighborSampler::sample, "seeds"_a.noconvert(), "fanouts"_a.noconvert(), "key"_a, "minibatch"_a,
           "slice_start"_a = nb::none());
  bind_sweep_sampler(m);
}

}  // namespace diskgnn
