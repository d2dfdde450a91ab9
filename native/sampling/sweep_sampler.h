// Neighbour sampling for topologies larger than memory: many minibatches grow together, one layer at a time, while
// indptr and indices of each edge type pass by from front to back, with weights and times where they are needed. The
// draws are those of `sample_minibatch`, hence the same bytes.
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

// Numbers in a file, one per node or edge.
struct Column {
  DirectFile file;
  std::uint64_t offset;  // of the data in the file, in bytes
  unsigned item_bytes;
};

// The edges of one type: a CSC topology on disk.
struct RelationFiles {
  std::int32_t source = 0, destination = 0;  // numbers of node types
  std::int64_t num_edges = 0;
  Column indptr, indices;                // int64 [N + 1]; int32 or int64 [E]
  std::optional<Column> weights, times;  // float [E]; int64 [E]
};

struct GraphFiles {
  GraphFiles() = default;
  GraphFiles(const GraphFiles&) = delete;

  std::vector<std::int64_t> num_nodes;                    // by node type
  std::vector<std::span<const std::int64_t>> node_times;  // by node type: [N] in memory or mapped, or empty
  std::vector<RelationFiles> relations;                   // by number of the edge type

  bool has_times(const RelationFiles& relation) const {
    return relation.times || !node_times[static_cast<std::size_t>(relation.source)].empty();
  }
};

// A minibatch that is being sampled. Layer by layer: `TopologySweep::count`, `TopologySweep::draw`, `relabel`; after
// the last layer, `take`.
template <typename Id, bool kTrees>
class Expansion {
 public:
  using Keys = NodeKeys<Id, kTrees>;
  using Key = typename Keys::Key;

  // Throws std::invalid_argument when a seed is out of range or repeated. `files` must outlive this.
  Expansion(DrawRequest request, const GraphFiles& files);
  Expansion(const Expansion&) = delete;

  // Turns the drawn neighbours into blocks.
  void relabel();

  // The finished minibatch; this is empty afterwards.
  SampledMinibatch<Id> take();

  const DrawRequest& request() const { return request_; }
  const GraphFiles& files() const { return files_; }
  std::size_t layer() const { return layers_.size(); }
  std::uint64_t memory_bytes() const;  // held now
  // Upper bounds, known once the layer is counted: what `draw` adds, what `relabel` needs in passing (its result
  // included), and what is held when the next layer is counted.
  std::uint64_t drawn_bytes() const;
  std::uint64_t relabel_bytes() const;
  std::uint64_t next_layer_bytes() const;

 private:
  friend class TopologySweep;

  // One edge type in the layer under way.
  struct Turn {
    // Of the block to be, as long as nothing is filtered; while counting, the number of edges one place further on.
    PageArray<std::int32_t> indptr;
    std::optional<PageMemory> drawn;   // a Key or a Candidate for each edge, sources without trees
    std::vector<std::int32_t> filled;  // [num_dst] of them in use, where edges are chosen

    std::uint64_t num_drawn() const { return indptr.empty() ? 0 : static_cast<std::uint64_t>(indptr.back()); }
  };

  int fanout(std::size_t number) const { return request_.fanouts[layer() * files_.relations.size() + number]; }
  bool scans(std::size_t number) const;
  bool is_chosen(std::size_t number, std::int64_t node) const;  // from its list, edge by edge
  bool keeps_candidates(std::size_t number) const;              // not only sources
  bool wants_positions(std::size_t number) const { return !request_.positions.empty() && request_.positions[number]; }
  std::uint64_t turn_bytes(std::size_t number) const;
  std::uint64_t num_drawn_from(std::size_t type) const;  // sources of this type, repeated ones too
  std::uint64_t max_nodes(std::size_t type) const;       // after `relabel`
  std::int64_t node_of(std::size_t type, std::size_t position) const {
    return Keys::node_of(nodes_[type][position], files_.num_nodes[type]);
  }
  void start_layer();
  void finish_counting();
  void allocate_drawn();
  // The positions in `nodes_` of destinations of an edge type that are in [first, last), ascending by node.
  std::span<const std::int32_t> between(std::size_t type, std::int64_t first, std::int64_t last) const;
  // The sources that a turn drew; its indptr becomes the block's.
  PageArray<Key> drawn_sources(std::size_t number, PageArray<std::int64_t>& positions);

  DrawRequest request_;
  const GraphFiles& files_;
  std::vector<std::int64_t> tree_times_;
  std::vector<PageArray<Key>> nodes_;              // by type: seeds first, then in order of first appearance
  std::vector<std::vector<std::int32_t>> orders_;  // by type: positions in `nodes_`, ascending by node
  std::vector<Turn> turns_;                        // by edge type
  std::vector<SampledLayer> layers_;               // finished ones, from the seeds outwards
  std::vector<std::vector<std::size_t>> counts_;   // of nodes known before each of them, by type
};

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
