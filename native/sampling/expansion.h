// A minibatch that grows one layer at a time, while the topology passes by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "files/page_memory.h"
#include "sampling/graph_files.h"
#include "sampling/sampled_minibatch.h"

namespace diskgnn {

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
  std::vector<SeedTime> tree_times_;
  std::vector<PageArray<Key>> nodes_;              // by type: seeds first, then in order of first appearance
  std::vector<std::vector<std::int32_t>> orders_;  // by type: positions in `nodes_`, ascending by node
  std::vector<Turn> turns_;                        // by edge type
  std::vector<SampledLayer> layers_;               // finished ones, from the seeds outwards
  std::vector<std::vector<std::size_t>> counts_;   // of nodes known before each of them, by type
};

}  // namespace diskgnn
