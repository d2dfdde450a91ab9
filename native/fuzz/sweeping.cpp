// Sampling by sweeps over topology that a stranger made, and may change between two sweeps: refused, or what sampling
// in memory makes of it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/hostile_graph.h"
#include "fuzz/immediate_engine.h"
#include "sampling/neighbor_sampler.h"
#include "sampling/topology_sweep.h"

namespace diskgnn {

// In place of the engines of files/read_engine.cpp, which no target has that defines this: starting their threads
// takes longer than all else.
std::unique_ptr<ReadEngine> make_read_engine(EngineKind /*kind*/, const DirectFile& file, unsigned /*depth*/,
                                             std::span<std::byte> /*registered*/) {
  const auto read = [&file](const ReadRequest& request) {
    const ssize_t count = pread(file.descriptor(), request.destination.data(), request.destination.size(),
                                static_cast<off_t>(request.offset));
    must(count >= static_cast<ssize_t>(request.required_bytes));
  };
  return std::make_unique<ImmediateEngine<decltype(read)>>(read);
}

namespace {

constexpr std::size_t kWindowBytes = 4096;

// A file in memory, of which every execution writes another content.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("column", 0)) { must(descriptor_ >= 0); }

  template <typename Number>
  Column column(std::span<const Number> numbers) {
    write(numbers);
    return {DirectFile("/proc/self/fd/" + std::to_string(descriptor_)), 0, sizeof(Number)};
  }

  template <typename Number>
  void write(std::span<const Number> numbers) {
    must(ftruncate(descriptor_, static_cast<off_t>(numbers.size_bytes())) == 0);
    must(pwrite(descriptor_, numbers.data(), numbers.size_bytes(), 0) == static_cast<ssize_t>(numbers.size_bytes()));
  }

 private:
  const int descriptor_;
};

struct RelationColumns {
  MemoryFile indptr, indices, weights, times;
};

template <typename Id>
bool same(const SampledMinibatch<Id>& a, const SampledMinibatch<Id>& b) {
  const auto same_block = [](const SampledBlock& x, const SampledBlock& y) {
    return x.indptr == y.indptr && x.indices == y.indices && x.positions == y.positions;
  };
  return a.input_nodes == b.input_nodes && a.trees == b.trees && a.node_counts == b.node_counts &&
         std::ranges::equal(a.layers, b.layers, [&](const SampledLayer& x, const SampledLayer& y) {
           return std::ranges::equal(x, y, same_block);
         });
}

template <typename Id, bool kTrees>
void sweep(HostileGraph& graph, const DrawRequest& request, Input& input) {
  static std::vector<RelationColumns>& columns = *new std::vector<RelationColumns>(2);
  GraphFiles files;
  files.num_nodes = graph.num_nodes;
  for (const auto& times : graph.node_times) files.node_times.push_back(times);
  for (std::size_t number = 0; number < graph.relations.size(); ++number) {
    const HostileRelation& relation = graph.relations[number];
    RelationColumns& of = columns[number];
    files.relations.push_back(
        {relation.source, relation.destination, static_cast<std::int64_t>(relation.num_edges()),
         of.indptr.column(std::span(relation.indptr)),
         std::visit([&](const auto& indices) { return of.indices.column(indices); }, relation.indices()),
         relation.weights.empty() ? std::nullopt : std::optional(of.weights.column(std::span(relation.weights))),
         relation.times.empty() ? std::nullopt : std::optional(of.times.column(std::span(relation.times)))});
  }
  Expansion<Id, kTrees> expansion(request, files);
  TopologySweep sweep(files, EngineKind::kAuto, kWindowBytes, 1);
  Expansion<Id, kTrees>* const group[] = {&expansion};
  const std::size_t num_layers = request.fanouts.size() / graph.relations.size();
  const bool changes = input.take_below(4) == 0;
  for (std::size_t layer = 0; layer < num_layers; ++layer) {
    sweep.count<Id, kTrees>(group);
    for (std::size_t number = 0; changes && number < graph.relations.size(); ++number) {
      HostileRelation& relation = graph.relations[number];
      relation.indptr = take_indptr(input, relation.indptr.size() - 1, relation.num_edges());
      columns[number].indptr.write(std::span<const std::int64_t>(relation.indptr));
    }
    sweep.draw<Id, kTrees>(group);
    expansion.relabel();
  }
  const SampledMinibatch<Id> swept = expansion.take();
  if (!changes) must(same(swept, sample_minibatch<Id, kTrees>(graph.topology(), request)));
}

}  // namespace

void execute(Input& input) {
  HostileGraph graph = take_graph(input);
  const DrawRequest request = take_request(input, graph);
  sample_hostile(graph, request, [&]<typename Id, bool kTrees> { sweep<Id, kTrees>(graph, request, input); });
}

}  // namespace diskgnn
