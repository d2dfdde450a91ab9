#include "sampling/topology_sweep.h"

#include <algorithm>
#include <semaphore>
#include <stdexcept>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "files/parallel.h"
#include "sampling/panel_reader.h"

namespace diskgnn {
namespace {

template <typename Function>
void for_each_in_parallel(unsigned threads, std::size_t count, const Function& function) {
  std::atomic<std::size_t> next = 0;
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(threads, count)), [&] {
    for (std::size_t i = next++; i < count; i = next++) function(i);
  });
}

}  // namespace

TopologySweep::TopologySweep(const GraphFiles& files, EngineKind engine, std::size_t window_bytes, unsigned threads)
    : files_(files), engine_(engine), window_bytes_(window_bytes), threads_(threads) {
  if (window_bytes == 0 || window_bytes % kDirectAlignment != 0) {
    throw std::invalid_argument("window_bytes: expected a multiple of 4096");
  }
  if (threads == 0) throw std::invalid_argument("threads: expected at least 1");
  // .npy files have offsets like that; then no number lies across the border of two pages.
  const auto is_aligned = [](const Column& column) { return column.offset % sizeof(std::int64_t) == 0; };
  for (const RelationFiles& relation : files_.relations) {
    if (!is_aligned(relation.indptr) || !is_aligned(relation.indices) ||
        (relation.weights && !is_aligned(*relation.weights)) || (relation.times && !is_aligned(*relation.times))) {
      throw std::invalid_argument("offsets of data: expected multiples of 8");
    }
  }
}

template <typename Id, bool kTrees, typename Index>
void TopologySweep::sweep(std::size_t number, std::span<Expansion<Id, kTrees>* const> group, bool draw) {
  const auto panel_nodes = static_cast<std::int64_t>(window_bytes_ / 2 / sizeof(std::int64_t) / kWordBits * kWordBits);
  const std::int64_t num_nodes = files_.num_nodes[static_cast<std::size_t>(files_.relations[number].destination)];
  const std::int64_t num_panels = (num_nodes + panel_nodes - 1) / panel_nodes;
  std::counting_semaphore<> cores(threads_);
  std::atomic<std::int64_t> next = 0;
  const auto num_readers = std::min<std::int64_t>(num_panels, threads_ * kReadersPerThread);
  run_on_threads(static_cast<unsigned>(num_readers), [&] {
    Reader<Id, kTrees, Index> reader(*this, number, group, cores, panel_nodes, draw);
    try {
      for (std::int64_t panel = next++; panel < num_panels; panel = next++) reader.visit(panel * panel_nodes);
    } catch (...) {
      next = num_panels;  // the others need not go on
      throw;
    }
  });
}

template <typename Id, bool kTrees>
void TopologySweep::sweep_all(std::span<Expansion<Id, kTrees>* const> group, bool draw) {
  std::vector<Expansion<Id, kTrees>*> drawing;
  for (std::size_t number = 0; number < files_.relations.size(); ++number) {
    drawing.clear();
    for (Expansion<Id, kTrees>* expansion : group) {
      if (expansion->fanout(number) != 0) drawing.push_back(expansion);
    }
    if (drawing.empty()) continue;
    if (files_.relations[number].indices.item_bytes == sizeof(std::int32_t)) {
      sweep<Id, kTrees, std::int32_t>(number, drawing, draw);
    } else {
      sweep<Id, kTrees, std::int64_t>(number, drawing, draw);
    }
  }
}

template <typename Id, bool kTrees>
void TopologySweep::count(std::span<Expansion<Id, kTrees>* const> group) {
  for_each_in_parallel(threads_, group.size(), [&](std::size_t i) { group[i]->start_layer(); });
  sweep_all(group, false);
  for (Expansion<Id, kTrees>* expansion : group) expansion->finish_counting();
}

template <typename Id, bool kTrees>
void TopologySweep::draw(std::span<Expansion<Id, kTrees>* const> group) {
#ifdef __GLIBC__
  malloc_trim(0);  // tables and vectors of finished minibatches: malloc keeps what has been freed, a budget cannot
#endif
  for (Expansion<Id, kTrees>* expansion : group) expansion->allocate_drawn();
  sweep_all(group, true);
}

#define DISKGNN_INSTANTIATE(Id, kTrees)                                              \
  template void TopologySweep::count(std::span<Expansion<Id, kTrees>* const> group); \
  template void TopologySweep::draw(std::span<Expansion<Id, kTrees>* const> group);

DISKGNN_INSTANTIATE(std::int32_t, false)
DISKGNN_INSTANTIATE(std::int32_t, true)
DISKGNN_INSTANTIATE(std::int64_t, false)
DISKGNN_INSTANTIATE(std::int64_t, true)

}  // namespace diskgnn
