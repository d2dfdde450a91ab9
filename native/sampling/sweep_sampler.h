// Neighbour sampling for topologies larger than memory: many minibatches grow together, one layer at a time, while
// indptr and indices pass by from front to back. The draws are those of `sample_minibatch`, hence the same bytes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sampling/neighbor_sampler.h"
#include "storage/direct_file.h"
#include "storage/page_memory.h"
#include "storage/read_engine.h"

namespace diskgnn {

// A minibatch that is being sampled. Layer by layer: `TopologySweep::count`, `TopologySweep::draw`, `relabel`; after
// the last layer, `take`.
template <typename Node>
class Expansion {
 public:
  // Throws std::invalid_argument when a seed is out of range or repeated.
  Expansion(std::span<const std::int64_t> seeds, std::vector<std::int32_t> fanouts, DrawKey key,
            std::int64_t num_nodes);

  // Turns the drawn neighbours into a block.
  void relabel();

  // The finished minibatch; this is empty afterwards.
  SampledMinibatch<Node> take();

  std::size_t layer() const { return blocks_.size(); }
  std::uint64_t memory_bytes() const;  // held now
  // Upper bounds, known once the layer is counted: what `draw` adds, what `relabel` needs in passing (its result
  // included), and what is held when the next layer is counted.
  std::uint64_t drawn_bytes() const { return num_drawn() * sizeof(Node); }
  std::uint64_t relabel_bytes() const;
  std::uint64_t next_layer_bytes() const;

 private:
  friend class TopologySweep;

  int fanout() const { return fanouts_[layer()]; }
  std::uint64_t num_drawn() const { return indptr_.empty() ? 0 : static_cast<std::uint64_t>(indptr_.back()); }
  std::uint64_t max_nodes() const;  // after `relabel`
  void start_layer();
  void finish_counting();
  // The part of `order_` whose nodes are in [first, last).
  std::span<const std::int32_t> between(std::int64_t first, std::int64_t last) const;

  std::vector<std::int32_t> fanouts_;
  DrawKey key_;
  std::int64_t num_nodes_;
  std::vector<Node> nodes_;           // the layer's destinations: seeds first, then in order of first appearance
  std::vector<SampledBlock> blocks_;  // finished layers, from the seeds outwards
  std::vector<std::int32_t> order_;   // positions in `nodes_`, ascending by node
  std::vector<std::int32_t> indptr_;  // of the block to be; while counting, the number of edges one place further on
  std::optional<PageMemory> drawn_;   // neighbours as global ids, where the block will have their local numbers
};

// A CSC topology on disk.
struct TopologyFiles {
  DirectFile indptr;
  std::uint64_t indptr_offset;  // of the data in the file, in bytes
  DirectFile indices;
  std::uint64_t indices_offset;
  std::int64_t num_nodes;
  std::int64_t num_edges;
};

class TopologySweep {
 public:
  // Each of `threads * kReadersPerThread` readers holds `window_bytes` of indices (a multiple of kDirectAlignment)
  // and half as much of indptr. `files` must outlive this.
  TopologySweep(const TopologyFiles& files, EngineKind engine, std::size_t window_bytes, unsigned threads);

  // Sweeps indptr: how many edges each minibatch of `group` will draw in its next layer. Throws std::out_of_range
  // when the topology leads outside of itself (a damaged file), std::invalid_argument when a block would need more
  // than 2^31 - 1 edges, std::system_error when a read fails.
  template <typename Node>
  void count(std::span<Expansion<Node>* const> group);

  // Sweeps indptr and indices: draws the neighbours. `group` may be any part of what was counted together.
  template <typename Node>
  void draw(std::span<Expansion<Node>* const> group);

  // Makes `count` and `draw` throw soon, now and from now on.
  void stop() { stopping_ = true; }

  std::uint64_t read_bytes() const { return read_bytes_; }

  // While some wait for the disk, others compute.
  static constexpr unsigned kReadersPerThread = 2;

 private:
  struct Panel;
  template <typename Node>
  class Reader;

  template <typename Node>
  void sweep(std::span<Expansion<Node>* const> group, bool draw);

  const TopologyFiles& files_;
  EngineKind engine_;
  std::size_t window_bytes_;
  unsigned threads_;
  std::atomic<bool> stopping_ = false;
  std::atomic<std::uint64_t> read_bytes_ = 0;
};

}  // namespace diskgnn
