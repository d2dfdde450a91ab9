#include "sampling/sweep_sampler.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <utility>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "graph/neighbor_order.h"
#include "graph/radix_sort.h"
#include "sampling/relabel_table.h"
#include "storage/parallel.h"

namespace diskgnn {
namespace {

// Gaps up to this size are read along: random reads of 64 KiB reach a disk's sequential rate.
constexpr std::uint64_t kGapBytes = 32 << 10;
constexpr std::size_t kWordBits = 64;

// Appends [begin, end) to ascending `ranges`, one with the last of them if the gap is at most `gap`.
void append_range(std::vector<ByteRange>& ranges, std::uint64_t begin, std::uint64_t end, std::uint64_t gap) {
  if (!ranges.empty() && begin <= ranges.back().offset + ranges.back().bytes + gap) {
    ranges.back().bytes = std::max(ranges.back().offset + ranges.back().bytes, end) - ranges.back().offset;
  } else {
    ranges.push_back({begin, end - begin});
  }
}

std::uint64_t align_down(std::uint64_t offset) { return offset / kDirectAlignment * kDirectAlignment; }

template <typename Function>
void for_each_in_parallel(unsigned threads, std::size_t count, const Function& function) {
  std::atomic<std::size_t> next = 0;
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(threads, count)), [&] {
    for (std::size_t i = next++; i < count; i = next++) function(i);
  });
}

[[noreturn]] void throw_too_many_edges() {
  throw std::invalid_argument("a block has more than 2^31 - 1 edges; use smaller batches or fanouts");
}

}  // namespace

template <typename Id, bool kTrees>
Expansion<Id, kTrees>::Expansion(DrawRequest request, const GraphFiles& files)
    : request_(std::move(request)),
      files_(files),
      tree_times_(tree_times(request_)),
      nodes_(files.num_nodes.size()),
      orders_(files.num_nodes.size()),
      turns_(files.relations.size()) {
  if (request_.fanouts.size() % turns_.size() != 0) throw std::invalid_argument("fanouts: expected one per edge type");
  insert_seeds<Id, kTrees>(request_, files.num_nodes, nodes_);
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::scans(std::size_t number) const {
  const RelationFiles& relation = files_.relations[number];
  return scans_lists(request_, files_.has_times(relation), relation.weights.has_value());
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::is_chosen(std::size_t number, std::int64_t node) const {
  return scans(number) || (!request_.excluded.empty() && !request_.excluded[number].sources_of(node).empty());
}

template <typename Id, bool kTrees>
bool Expansion<Id, kTrees>::keeps_candidates(std::size_t number) const {
  return scans(number) || wants_positions(number) || (!request_.excluded.empty() && !request_.excluded[number].empty());
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const PageArray<Key>& nodes : nodes_) bytes += nodes.capacity() * sizeof(Key);
  for (const std::vector<std::int32_t>& order : orders_) bytes += order.capacity() * 4;
  for (const SampledLayer& layer : layers_) {
    for (const SampledBlock& block : layer) {
      bytes += (block.indptr.capacity() + block.indices.capacity()) * 4 + block.positions.capacity() * 8;
    }
  }
  for (const Turn& turn : turns_) {
    bytes += (turn.indptr.capacity() + turn.filled.capacity()) * 4 + (turn.drawn ? turn.drawn->bytes().size() : 0);
  }
  return bytes;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::turn_bytes(std::size_t number) const {
  return turns_[number].num_drawn() * (keeps_candidates(number) ? sizeof(Candidate) : sizeof(Key));
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::drawn_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    bytes += turn_bytes(number);
    if (keeps_candidates(number)) bytes += turns_[number].indptr.size() * 4;
  }
  return bytes;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::num_drawn_from(std::size_t type) const {
  std::uint64_t num_drawn = 0;
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    if (static_cast<std::size_t>(files_.relations[number].source) == type) num_drawn += turns_[number].num_drawn();
  }
  return num_drawn;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::max_nodes(std::size_t type) const {
  const std::uint64_t nodes = nodes_[type].size() + num_drawn_from(type);
  return kTrees ? nodes : std::min(nodes, static_cast<std::uint64_t>(files_.num_nodes[type]));
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::relabel_bytes() const {
  std::uint64_t bytes = 0, passing = 0;
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    bytes += RelabelTable<Key>::bytes_for(max_nodes(type)) + max_nodes(type) * sizeof(Key);
  }
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const std::uint64_t num_drawn = turns_[number].num_drawn();
    bytes += num_drawn * (wants_positions(number) ? 12 : 4);
    if (kTrees || keeps_candidates(number)) passing = std::max(passing, num_drawn * sizeof(Key));
  }
  return bytes + passing;
}

template <typename Id, bool kTrees>
std::uint64_t Expansion<Id, kTrees>::next_layer_bytes() const {
  std::uint64_t bytes = memory_bytes();
  for (std::size_t type = 0; type < nodes_.size(); ++type) bytes += max_nodes(type) * (sizeof(Key) + 4);
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    bytes += max_nodes(static_cast<std::size_t>(files_.relations[number].destination)) * 4;
    bytes += turns_[number].num_drawn() * (wants_positions(number) ? 12 : 4);
  }
  return bytes;
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::start_layer() {
  struct Record {
    Id node;
    std::int32_t position;
  };
  std::vector<bool> wanted(nodes_.size());
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const auto destination = static_cast<std::size_t>(files_.relations[number].destination);
    if (fanout(number) != 0) wanted[destination] = true;
    turns_[number].indptr.assign(nodes_[destination].size() + 1, 0);
  }
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    if (!wanted[type]) continue;
    const std::size_t first = request_.expand_once && !counts_.empty() ? counts_.back()[type] : 0;
    std::vector<Record> records(nodes_[type].size() - first), scratch;
    for (std::size_t i = 0; i < records.size(); ++i) {
      records[i] = {static_cast<Id>(node_of(type, first + i)), static_cast<std::int32_t>(first + i)};
    }
    radix_sort(records, scratch, std::bit_width(static_cast<std::uint64_t>(files_.num_nodes[type])),
               [](const Record& record) { return static_cast<std::uint64_t>(record.node); });
    orders_[type].resize(records.size());
    for (std::size_t i = 0; i < records.size(); ++i) orders_[type][i] = records[i].position;
  }
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::finish_counting() {
  for (Turn& turn : turns_) {
    std::int64_t total = 0;
    for (std::int32_t& offset : turn.indptr) {
      total += offset;
      if (total > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
      offset = static_cast<std::int32_t>(total);
    }
  }
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::allocate_drawn() {
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    Turn& turn = turns_[number];
    if (turn.indptr.empty()) throw std::logic_error("draw comes after count");
    turn.drawn.emplace(static_cast<std::size_t>(turn_bytes(number)));
    if (keeps_candidates(number)) turn.filled.assign(turn.indptr.size() - 1, 0);
  }
}

template <typename Id, bool kTrees>
std::span<const std::int32_t> Expansion<Id, kTrees>::between(std::size_t type, std::int64_t first,
                                                             std::int64_t last) const {
  const std::vector<std::int32_t>& order = orders_[type];
  const auto precedes = [this, type](std::int32_t position, std::int64_t node) {
    return node_of(type, static_cast<std::size_t>(position)) < node;
  };
  const auto begin = std::lower_bound(order.begin(), order.end(), first, precedes);
  return {begin, std::lower_bound(begin, order.end(), last, precedes)};
}

template <typename Id, bool kTrees>
auto Expansion<Id, kTrees>::drawn_sources(std::size_t number, PageArray<std::int64_t>& positions) -> PageArray<Key> {
  Turn& turn = turns_[number];
  if (!keeps_candidates(number)) {
    const std::span<const Key> drawn(reinterpret_cast<const Key*>(turn.drawn->bytes().data()), turn.num_drawn());
    return {drawn.begin(), drawn.end()};
  }
  const std::span<Candidate> drawn(reinterpret_cast<Candidate*>(turn.drawn->bytes().data()), turn.num_drawn());
  const auto destination = static_cast<std::size_t>(files_.relations[number].destination);
  PageArray<Key> sources;
  sources.reserve(drawn.size());
  if (wants_positions(number)) positions.reserve(drawn.size());
  std::int32_t begin = 0;
  for (std::size_t i = 0; i + 1 < turn.indptr.size(); ++i) {
    const std::int32_t end = turn.indptr[i + 1];
    std::span<Candidate> of_node =
        drawn.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    if (is_chosen(number, node_of(destination, i))) {
      of_node = of_node.first(static_cast<std::size_t>(turn.filled[i]));
      sort_by_position(of_node);
    }
    for (const Candidate& each : of_node) {
      sources.push_back(static_cast<Key>(each.source));
      if (wants_positions(number)) positions.push_back(each.position);
    }
    begin = end;
    turn.indptr[i + 1] = static_cast<std::int32_t>(sources.size());
  }
  return sources;
}

template <typename Id, bool kTrees>
void Expansion<Id, kTrees>::relabel() {
  if (!turns_[0].drawn) throw std::logic_error("relabel comes after draw");
  orders_.assign(nodes_.size(), {});
  std::vector<std::size_t> counts;
  for (const PageArray<Key>& nodes : nodes_) counts.push_back(nodes.size());
  std::vector<RelabelTable<Key>> tables(nodes_.size());
  for (std::size_t type = 0; type < nodes_.size(); ++type) {
    if (num_drawn_from(type) == 0) continue;
    nodes_[type].reserve(max_nodes(type));
    tables[type].restart(nodes_[type], max_nodes(type));
  }
  SampledLayer layer(turns_.size());
  for (std::size_t number = 0; number < turns_.size(); ++number) {
    const RelationFiles& relation = files_.relations[number];
    const auto source = static_cast<std::size_t>(relation.source);
    const auto destination = static_cast<std::size_t>(relation.destination);
    Turn& turn = turns_[number];
    SampledBlock& block = layer[number];
    PageArray<Key> sources = drawn_sources(number, block.positions);
    turn.drawn.reset();
    turn.filled = {};
    block.indptr = std::move(turn.indptr);
    turn.indptr = {};
    if constexpr (kTrees) {
      enter_trees(block.indptr, nodes_[destination], files_.num_nodes[destination], files_.num_nodes[source], sources);
    }
    block.indices.resize(sources.size());
    tables[source].insert_all(sources, nodes_[source], block.indices);
  }
  for (PageArray<Key>& nodes : nodes_) nodes.shrink_to_fit();
  layers_.push_back(std::move(layer));
  counts_.push_back(std::move(counts));
}

template <typename Id, bool kTrees>
SampledMinibatch<Id> Expansion<Id, kTrees>::take() {
  std::vector<PageArray<Key>> nodes(nodes_.size());
  nodes.swap(nodes_);
  return finished_minibatch<Id, kTrees>(std::move(nodes), std::exchange(layers_, {}), counts_, files_.num_nodes);
}

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

namespace {

// Part of a column of edges in memory.
class ColumnWindow {
 public:
  ColumnWindow(const Column& column, EngineKind engine, std::int64_t num_edges)
      : column_(column),
        memory_(static_cast<std::size_t>(num_edges) * column.item_bytes + 2 * kDirectAlignment),
        engine_(make_read_engine(engine, column.file, kRangeDepth, memory_.bytes())) {}

  // Reads [offset, offset + bytes) of each of `edges`, counted in edges; the first is the window's first edge. Bytes.
  std::uint64_t read(std::span<const ByteRange> edges) {
    ranges_.clear();
    std::uint64_t bytes = 0;
    for (const ByteRange& range : edges) {
      ranges_.push_back({column_.offset + range.offset * column_.item_bytes, range.bytes * column_.item_bytes});
      bytes += ranges_.back().bytes;
    }
    base_ = align_down(ranges_.front().offset);
    read_ranges(*engine_, ranges_, base_, memory_.bytes());
    return bytes;
  }

  // Where the value of `edge` is; only those of the ranges are.
  template <typename Value>
  const Value* at(std::int64_t edge) const {
    const std::uint64_t offset = column_.offset + static_cast<std::uint64_t>(edge) * sizeof(Value);
    return reinterpret_cast<const Value*>(memory_.bytes().data() + (offset - base_));
  }

 private:
  const Column& column_;
  PageMemory memory_;  // outlives the engine, which waits for what is in flight
  std::unique_ptr<ReadEngine> engine_;
  std::vector<ByteRange> ranges_;
  std::uint64_t base_ = 0;
};

}  // namespace

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

  void count() {
    const CoreLease lease(cores_);
    for (Growing* expansion : group_) {
      const int fanout = expansion->fanout(number_);
      for (const std::int32_t position : expansion->between(destination_, panel_.first, panel_.last)) {
        const auto i = static_cast<std::size_t>(position);
        const std::int64_t node = expansion->node_of(destination_, i);
        const std::int64_t degree = panel_.offset(node + 1) - panel_.offset(node);
        const std::int64_t drawn = fanout < 0 ? degree : std::min<std::int64_t>(degree, fanout);
        if (drawn > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
        expansion->turns_[number_].indptr[i + 1] = static_cast<std::int32_t>(drawn);
      }
    }
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
                            scans && request.latest, request.key.slice_start};
    ListRules list{
        draw_state(request.key, expansion.layer(), number_, key), std::numeric_limits<std::int64_t>::max(), {}};
    if (is_timed) {
      const std::int64_t tree = Growing::Keys::tree_of(key, num_destinations_);
      list.latest_time = expansion.tree_times_[static_cast<std::size_t>(tree)];
    }
    if (!request.excluded.empty()) list.excluded = request.excluded[number_].sources_of(node);
    const std::int64_t begin = panel_.offset(node);
    const std::int64_t first = std::max(begin, first_edge_), stop = std::min(panel_.offset(node + 1), last_edge_);
    const EdgeRun<Index> run{{indices_->at<Index>(first), static_cast<std::size_t>(stop - first)},
                             times_ ? times_->at<std::int64_t>(first) : nullptr,
                             weights_ ? weights_->at<float>(first) : nullptr,
                             begin,
                             first - begin};
    std::int32_t& filled = expansion.turns_[number_].filled[i];
    Choice choice(slots, static_cast<std::size_t>(filled));
    choose(rules, list, run, choice);
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
  template class Expansion<Id, kTrees>;                                              \
  template void TopologySweep::count(std::span<Expansion<Id, kTrees>* const> group); \
  template void TopologySweep::draw(std::span<Expansion<Id, kTrees>* const> group);

DISKGNN_INSTANTIATE(std::int32_t, false)
DISKGNN_INSTANTIATE(std::int32_t, true)
DISKGNN_INSTANTIATE(std::int64_t, false)
DISKGNN_INSTANTIATE(std::int64_t, true)

}  // namespace diskgnn
