// One thread's part of a sweep: panels of consecutive destinations, and what is drawn from them.
#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <vector>

#include "files/page_memory.h"
#include "graph/neighbor_order.h"
#include "sampling/column_window.h"
#include "sampling/edge_choice.h"
#include "sampling/independent_draws.h"
#include "sampling/topology_sweep.h"

namespace diskgnn {

constexpr std::size_t kWordBits = 64;

// Consecutive destinations of an edge type, and where their in-edges are.
struct TopologySweep::Panel {
  std::int64_t first, last;           // [first, last)
  std::vector<std::uint64_t> wanted;  // a bit per node: some minibatch draws for it
  const std::byte* indptr;            // offset of `first`, then of the next; only those of wanted nodes were read

  template <typename Function>
  void for_each_wanted(const Function& function) const {
    for (std::size_t word = 0; word < wanted.size(); ++word) {
      for (std::uint64_t bits = wanted[word]; bits != 0; bits &= bits - 1) {
        function(first + static_cast<std::int64_t>(word * kWordBits) + std::countr_zero(bits));
      }
    }
  }

  std::int64_t offset(std::int64_t node) const { return reinterpret_cast<const std::int64_t*>(indptr)[node - first]; }
};

// One thread's part of a sweep over one edge type: reads a panel and serves all minibatches from it.
template <typename Id, bool kTrees, typename Index>
class TopologySweep::Reader {
  using Growing = Expansion<Id, kTrees>;
  using Key = typename Growing::Key;

 public:
  Reader(TopologySweep& sweep, std::size_t number, std::span<Growing* const> group, std::counting_semaphore<>& cores,
         std::int64_t panel_nodes, bool draw)
      : sweep_(sweep),
        number_(number),
        relation_(sweep.files_.relations[number]),
        destination_(static_cast<std::size_t>(relation_.destination)),
        num_destinations_(sweep.files_.num_nodes[destination_]),
        num_sources_(sweep.files_.num_nodes[static_cast<std::size_t>(relation_.source)]),
        group_(group),
        cores_(cores),
        panel_nodes_(panel_nodes),
        slice_begins_(group.size(), kUnknown),
        indptr_memory_(static_cast<std::size_t>(panel_nodes) * sizeof(std::int64_t) + 3 * kDirectAlignment),
        indptr_engine_(make_read_engine(sweep.engine_, relation_.indptr.file, kRangeDepth, indptr_memory_.bytes())) {
    panel_.wanted.resize(static_cast<std::size_t>(panel_nodes) / kWordBits);
    if (!draw) return;
    const DrawRequest& request = group.front()->request();
    const Column* const times = request.has_trees() && relation_.times ? &*relation_.times : nullptr;
    const Column* const weights = request.weighted && relation_.weights ? &*relation_.weights : nullptr;
    unsigned edge_bytes = relation_.indices.item_bytes;
    for (const Column* column : {times, weights}) edge_bytes += column == nullptr ? 0 : column->item_bytes;
    window_edges_ = static_cast<std::int64_t>(sweep.window_bytes_ / edge_bytes);
    indices_.emplace(relation_.indices, sweep.engine_, window_edges_);
    if (times != nullptr) times_.emplace(*times, sweep.engine_, window_edges_);
    if (weights != nullptr) weights_.emplace(*weights, sweep.engine_, window_edges_);
  }

  void visit(std::int64_t first) {
    panel_.first = first;
    panel_.last = std::min(first + panel_nodes_, num_destinations_);
    if (!find_wanted()) return;
    read_indptr();
    if (indices_) {
      require_same_counts();
      draw();
    } else {
      count();
    }
  }

 private:
  struct CoreLease {
    explicit CoreLease(std::counting_semaphore<>& cores) : cores(cores) { cores.acquire(); }
    ~CoreLease() { cores.release(); }
    std::counting_semaphore<>& cores;
  };

  bool find_wanted() {
    const CoreLease lease(cores_);
    std::fill(panel_.wanted.begin(), panel_.wanted.end(), 0);
    bool any = false;
    for (const Growing* expansion : group_) {
      for (const std::int32_t position : expansion->between(destination_, panel_.first, panel_.last)) {
        const std::int64_t node = expansion->node_of(destination_, static_cast<std::size_t>(position));
        const auto i = static_cast<std::size_t>(node - panel_.first);
        panel_.wanted[i / kWordBits] |= std::uint64_t{1} << (i % kWordBits);
        any = true;
      }
    }
    return any;
  }

  void read_indptr() {
    std::vector<ByteRange>& ranges = ranges_;
    ranges.clear();
    const std::uint64_t offset = relation_.indptr.offset;
    panel_.for_each_wanted([&](std::int64_t node) {
      const std::uint64_t begin = offset + static_cast<std::uint64_t>(node) * sizeof(std::int64_t);
      append_range(ranges, begin, begin + 2 * sizeof(std::int64_t), kGapBytes);
    });
    const std::uint64_t start = offset + static_cast<std::uint64_t>(panel_.first) * sizeof(std::int64_t);
    require_not_stopped();
    read_ranges(*indptr_engine_, ranges, align_down(start), indptr_memory_.bytes());
    for (const ByteRange& range : ranges) sweep_.read_bytes_ += range.bytes;
    panel_.indptr = indptr_memory_.bytes().data() + start % kDirectAlignment;
    std::int64_t previous = 0;
    panel_.for_each_wanted([&](std::int64_t node) {
      const std::int64_t begin = panel_.offset(node), end = panel_.offset(node + 1);
      if (begin < previous || begin > end || end > relation_.num_edges) {
        throw std::out_of_range("indptr is damaged at node " + std::to_string(node));
      }
      previous = end;
    });
  }

  void require_not_stopped() const {
    if (sweep_.stopping_) throw std::runtime_error("the sweep was stopped");
  }

  // Calls `function` with each minibatch's destinations in the panel, and the number of edges that each draws.
  template <typename Function>
  void for_each_count(const Function& function) {
    const CoreLease lease(cores_);
    for (Growing* expansion : group_) {
      const int fanout = expansion->fanout(number_);
      for (const std::int32_t position : expansion->between(destination_, panel_.first, panel_.last)) {
        const auto i = static_cast<std::size_t>(position);
        const std::int64_t node = expansion->node_of(destination_, i);
        const std::int64_t degree = panel_.offset(node + 1) - panel_.offset(node);
        function(*expansion, i, node, fanout < 0 ? degree : std::min<std::int64_t>(degree, fanout));
      }
    }
  }

  void count() {
    for_each_count([this](Growing& expansion, std::size_t i, std::int64_t, std::int64_t drawn) {
      if (drawn > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
      expansion.turns_[number_].indptr[i + 1] = static_cast<std::int32_t>(drawn);
    });
  }

  // The room for what is drawn was made when it was counted: indptr was read then, and is read again now.
  void require_same_counts() {
    for_each_count([this](const Growing& expansion, std::size_t i, std::int64_t node, std::int64_t drawn) {
      const auto& indptr = expansion.turns_[number_].indptr;
      if (drawn != indptr[i + 1] - indptr[i]) {
        throw std::out_of_range("indptr is damaged at node " + std::to_string(node) + ": it was another one before");
      }
    });
  }

  // Reads the panel's edges window by window. A node's edges may lie in several of them. Ranges count in edges here.
  void draw() {
    ranges_.clear();
    std::int64_t first_node = panel_.first, last_node = panel_.first;
    panel_.for_each_wanted([&](std::int64_t node) {
      std::int64_t begin = panel_.offset(node);
      const std::int64_t end = panel_.offset(node + 1);
      while (begin < end) {
        if (!ranges_.empty() && begin >= first_edge_ + window_edges_) {
          draw_window(first_node, last_node);
          ranges_.clear();
        }
        if (ranges_.empty()) {
          first_edge_ = begin;
          first_node = node;
        }
        const std::int64_t here = std::min(end, first_edge_ + window_edges_);
        append_range(ranges_, static_cast<std::uint64_t>(begin), static_cast<std::uint64_t>(here),
                     kGapBytes / sizeof(Index));
        last_node = node;
        begin = here;
      }
    });
    if (!ranges_.empty()) draw_window(first_node, last_node);
  }

  void draw_window(std::int64_t first_node, std::int64_t last_node) {
    for (std::optional<ColumnWindow>* column : {&indices_, &times_, &weights_}) {
      if (!*column) continue;
      require_not_stopped();
      sweep_.read_bytes_ += (*column)->read(ranges_);
    }
    last_edge_ = first_edge_ + window_edges_;
    const CoreLease lease(cores_);
    for (std::size_t g = 0; g < group_.size(); ++g) {
      Growing& expansion = *group_[g];
      std::int64_t previous = kUnknown, slice_begin_before = kUnknown;
      for (const std::int32_t position : expansion.between(destination_, first_node, last_node + 1)) {
        const auto i = static_cast<std::size_t>(position);
        const std::int64_t node = expansion.node_of(destination_, i);
        if (node != previous) slice_begin_before = slice_begins_[g];
        previous = node;
        slice_begins_[g] = slice_begin_before;  // a node of several trees has the same slice in each
        draw_node(expansion, i, node, slice_begins_[g]);
      }
    }
  }

  void draw_node(Growing& expansion, std::size_t i, std::int64_t node, std::int64_t& slice_begin) {
    auto& turn = expansion.turns_[number_];
    std::byte* const drawn = turn.drawn->bytes().data();
    const auto place = static_cast<std::size_t>(turn.indptr[i]);
    if (!expansion.keeps_candidates(number_)) {
      draw_plainly(expansion, i, node, reinterpret_cast<Key*>(drawn) + place, slice_begin);
    } else if (Candidate* const slots = reinterpret_cast<Candidate*>(drawn) + place;
               expansion.is_chosen(number_, node)) {
      choose_from(expansion, i, node, {slots, static_cast<std::size_t>(turn.indptr[i + 1] - turn.indptr[i])});
    } else {
      draw_plainly(expansion, i, node, slots, slice_begin);
    }
  }

  // Offers the window's part of a list to what chooses from it.
  void choose_from(Growing& expansion, std::size_t i, std::int64_t node, std::span<Candidate> slots) {
    const DrawRequest& request = expansion.request();
    const Key key = expansion.nodes_[destination_][i];
    const bool scans = expansion.scans(number_), is_timed = scans && request.has_trees();
    const std::span<const std::int64_t> source_times =
        sweep_.files_.node_times[static_cast<std::size_t>(relation_.source)];
    const ChoiceRules rules{num_sources_, is_timed ? source_times : std::span<const std::int64_t>{},
                            scans && request.latest, request.key.slice_start, relation_.by_time};
    ListRules list{draw_state(request.key, expansion.layer(), number_, key), {}, {}};
    if (is_timed) {
      const std::int64_t tree = Growing::Keys::tree_of(key, num_destinations_);
      list.times = request.times_for(expansion.tree_times_[static_cast<std::size_t>(tree)], number_);
    }
    list.excluded = request.excluded_of(number_, node);
    const std::int64_t begin = panel_.offset(node);
    const std::int64_t first = std::max(begin, first_edge_), stop = std::min(panel_.offset(node + 1), last_edge_);
    const EdgeRun<Index> run{{indices_->at<Index>(first), static_cast<std::size_t>(stop - first)},
                             times_ ? times_->at<std::int64_t>(first) : nullptr,
                             weights_ ? weights_->at<float>(first) : nullptr,
                             begin,
                             first - begin};
    std::int32_t& filled = expansion.turns_[number_].filled[i];
    Choice choice(slots, static_cast<std::size_t>(filled));
    choose(rules, list, in_range(rules, list, run), choice);
    filled = static_cast<std::int32_t>(choice.filled());
  }

  // Writes those of the node's neighbours whose edges are in the window. `slice_begin` is what `draw_slice` knows.
  template <typename Slot>
  void draw_plainly(const Growing& expansion, std::size_t i, std::int64_t node, Slot* drawn,
                    std::int64_t& slice_begin) {
    const std::int64_t begin = panel_.offset(node), end = panel_.offset(node + 1);
    const int fanout = expansion.fanout(number_);
    const DrawKey& key = expansion.request().key;
    if (fanout < 0 || end - begin <= fanout) {
      const std::int64_t stop = std::min(end, last_edge_);
      for (std::int64_t edge = std::max(begin, first_edge_); edge < stop; ++edge) put(drawn[edge - begin], edge);
      return;
    }
    if (key.slice_start) {
      draw_slice(begin, end, fanout, *key.slice_start, drawn, slice_begin);
      return;
    }
    positions_.clear();
    draw_positions(draw_state(key, expansion.layer(), number_, expansion.nodes_[destination_][i]), end - begin, fanout,
                   positions_);
    for (std::size_t k = 0; k < positions_.size(); ++k) {
      const std::int64_t edge = begin + positions_[k];
      if (edge >= first_edge_ && edge < last_edge_) put(drawn[k], edge);
    }
  }

  // The window's part of a slice. Where the slice begins in the list is known once a window has that place: then
  // `slice_begin` says so to the windows that follow. Until then the list's first neighbours are kept, because a slice
  // near its end goes on with them.
  template <typename Slot>
  void draw_slice(std::int64_t begin, std::int64_t end, std::int64_t fanout, std::uint64_t slice_start, Slot* drawn,
                  std::int64_t& slice_begin) {
    const std::int64_t degree = end - begin;
    const std::int64_t first = std::max(begin, first_edge_) - begin, stop = std::min(end, last_edge_) - begin;
    if (first == 0) slice_begin = kUnknown;
    if (slice_begin == kUnknown) {
      const std::span<const Index> here(indices_->at<Index>(begin + first), static_cast<std::size_t>(stop - first));
      const std::int64_t found = first + static_cast<std::int64_t>(first_at_or_after(here, slice_start));
      if (found + fanout > degree || found == stop) {
        for (std::int64_t i = first; i < std::min(found, fanout); ++i) put(drawn[i], begin + i);
      }
      if (found == stop) return;  // perhaps in the next window; after the last one, the slice is the list's beginning
      slice_begin = found;
      if (found + fanout > degree) std::copy_backward(drawn, drawn + (found + fanout - degree), drawn + fanout);
    }
    const std::int64_t last = std::min(stop, slice_begin + fanout);
    for (std::int64_t i = std::max(first, slice_begin); i < last; ++i) put(drawn[i - slice_begin], begin + i);
  }

  void put(Key& slot, std::int64_t edge) const { slot = static_cast<Key>(source_of(edge)); }
  void put(Candidate& slot, std::int64_t edge) const { slot = {0, edge, source_of(edge)}; }

  std::int64_t source_of(std::int64_t edge) const {
    const std::int64_t node = *indices_->at<Index>(edge);
    if (node < 0 || node >= num_sources_) throw_no_source(node, num_sources_);
    return node;
  }

  TopologySweep& sweep_;
  const std::size_t number_;
  const RelationFiles& relation_;
  const std::size_t destination_;
  const std::int64_t num_destinations_, num_sources_;
  const std::span<Growing* const> group_;
  std::counting_semaphore<>& cores_;
  const std::int64_t panel_nodes_;
  static constexpr std::int64_t kUnknown = -1;
  std::vector<std::int64_t> slice_begins_;  // per expansion, of the node whose list lies in several windows
  Panel panel_{};
  PageMemory indptr_memory_;  // outlives the engine, which waits for what is in flight
  std::unique_ptr<ReadEngine> indptr_engine_;
  std::optional<ColumnWindow> indices_, times_, weights_;
  std::vector<ByteRange> ranges_;
  std::vector<std::int64_t> positions_;
  std::int64_t window_edges_ = 0;
  std::int64_t first_edge_ = 0, last_edge_ = 0;  // the window's
};

}  // namespace diskgnn
