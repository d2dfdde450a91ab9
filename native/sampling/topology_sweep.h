// Neighbour sampling for topologies larger than memory: many minibatches grow together, one layer at a time, while
// indptr and indices of each edge type pass by from front to back, with weights and times where they are needed. The
// draws are those of `sample_minibatch`, hence the same bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "files/read_engine.h"
#include "sampling/expansion.h"
#include "sampling/graph_files.h"

namespace diskgnn {

class TopologySweep {
 public:
  // Each of `threads * kReadersPerThread` readers holds `window_bytes` of edges (a multiple of kDirectAlignment)
  // and half as much of indptr. `files` must outlive this.
  TopologySweep(const GraphFiles& files, EngineKind engine, std::size_t window_bytes, unsigned threads);

  // Sweeps indptr of each edge type: how many edges each minibatch of `group` will draw in its next layer, at most.
  // Throws std::out_of_range when the topology leads outside of itself (a damaged file), std::invalid_argument when a
  // block would need more than 2^31 - 1 edges, std::system_error when a read fails.
  template <typename Id, bool kTrees>
  void count(std::span<Expansion<Id, kTrees>* const> group);

  // Sweeps indptr and indices of each edge type: draws the neighbours. `group` may be any part of what was counted
  // together.
  template <typename Id, bool kTrees>
  void draw(std::span<Expansion<Id, kTrees>* const> group);

  // Makes `count` and `draw` throw soon, now and from now on.
  void stop() { stopping_ = true; }

  std::uint64_t read_bytes() const { return read_bytes_; }

  // While some wait for the disk, others compute.
  static constexpr unsigned kReadersPerThread = 2;

 private:
  struct Panel;
  template <typename Id, bool kTrees, typename Index>
  class Reader;

  template <typename Id, bool kTrees>
  void sweep_all(std::span<Expansion<Id, kTrees>* const> group, bool draw);
  template <typename Id, bool kTrees, typename Index>
  void sweep(std::size_t number, std::span<Expansion<Id, kTrees>* const> group, bool draw);

  const GraphFiles& files_;
  EngineKind engine_;
  std::size_t window_bytes_;
  unsigned threads_;
  std::atomic<bool> stopping_ = false;
  std::atomic<std::uint64_t> read_bytes_ = 0;
};

}  // namespace diskgnn
