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
constexpr std::uint64_t kGapBytes = 64 << 10;
constexpr std::size_t kWordBits = 64;

// Appends [begin, end) to ascending `ranges`, one with the last of them if that is near.
void append_range(std::vector<ByteRange>& ranges, std::uint64_t begin, std::uint64_t end) {
  if (!ranges.empty() && begin <= ranges.back().offset + ranges.back().bytes + kGapBytes) {
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

template <typename Node>
Expansion<Node>::Expansion(std::span<const std::int64_t> seeds, std::vector<std::int32_t> fanouts, DrawKey key,
                           std::int64_t num_nodes)
    : fanouts_(std::move(fanouts)), key_(key), num_nodes_(num_nodes) {
  RelabelTable<Node> table(seeds.size());
  nodes_.reserve(seeds.size());
  insert_seeds(seeds, num_nodes, table, nodes_);
}

template <typename Node>
std::uint64_t Expansion<Node>::memory_bytes() const {
  std::uint64_t bytes = nodes_.capacity() * sizeof(Node) + (order_.capacity() + indptr_.capacity()) * 4;
  for (const SampledBlock& block : blocks_) bytes += (block.indptr.capacity() + block.indices.capacity()) * 4;
  return bytes + (drawn_ ? drawn_->bytes().size() : 0);
}

template <typename Node>
std::uint64_t Expansion<Node>::max_nodes() const {
  return std::min<std::uint64_t>(nodes_.size() + num_drawn(), static_cast<std::uint64_t>(num_nodes_));
}

template <typename Node>
std::uint64_t Expansion<Node>::relabel_bytes() const {
  return RelabelTable<Node>::bytes_for(max_nodes()) + max_nodes() * sizeof(Node) + num_drawn() * 4;
}

template <typename Node>
std::uint64_t Expansion<Node>::next_layer_bytes() const {
  return memory_bytes() + max_nodes() * (sizeof(Node) + 8) + num_drawn() * 4;
}

template <typename Node>
void Expansion<Node>::start_layer() {
  struct Record {
    Node node;
    std::int32_t position;
  };
  std::vector<Record> records(nodes_.size()), scratch;
  for (std::size_t i = 0; i < nodes_.size(); ++i) records[i] = {nodes_[i], static_cast<std::int32_t>(i)};
  radix_sort(records, scratch, std::bit_width(static_cast<std::uint64_t>(num_nodes_)),
             [](const Record& record) { return static_cast<std::uint64_t>(record.node); });
  order_.resize(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) order_[i] = records[i].position;
  indptr_.assign(nodes_.size() + 1, 0);
}

template <typename Node>
void Expansion<Node>::finish_counting() {
  std::int64_t total = 0;
  for (std::int32_t& offset : indptr_) {
    total += offset;
    if (total > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
    offset = static_cast<std::int32_t>(total);
  }
}

template <typename Node>
std::span<const std::int32_t> Expansion<Node>::between(std::int64_t first, std::int64_t last) const {
  const auto precedes = [this](std::int32_t position, std::int64_t node) {
    return nodes_[static_cast<std::size_t>(position)] < node;
  };
  const auto begin = std::lower_bound(order_.begin(), order_.end(), first, precedes);
  return {begin, std::lower_bound(begin, order_.end(), last, precedes)};
}

template <typename Node>
void Expansion<Node>::relabel() {
  if (!drawn_) throw std::logic_error("relabel comes after draw");
  const std::span<const Node> neighbors(reinterpret_cast<const Node*>(drawn_->bytes().data()), num_drawn());
  order_ = {};
  RelabelTable<Node> table(max_nodes());
  std::vector<Node> nodes;
  nodes.reserve(max_nodes());
  for (const Node node : nodes_) table.insert(node, nodes);
  SampledBlock block{std::move(indptr_), std::vector<std::int32_t>(neighbors.size())};
  table.insert_all(neighbors, nodes, block.indices);
  nodes.shrink_to_fit();
  nodes_ = std::move(nodes);
  indptr_ = {};
  blocks_.push_back(std::move(block));
  drawn_.reset();
}

template <typename Node>
SampledMinibatch<Node> Expansion<Node>::take() {
  SampledMinibatch<Node> minibatch{std::move(nodes_), std::move(blocks_)};
  std::reverse(minibatch.blocks.begin(), minibatch.blocks.end());
  nodes_ = {};
  blocks_ = {};
  return minibatch;
}

// Consecutive nodes, and where their in-edges are.
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

// One thread's part of a sweep: reads a panel and serves all minibatches from it.
template <typename Node>
class TopologySweep::Reader {
 public:
  Reader(TopologySweep& sweep, std::span<Expansion<Node>* const> group, std::counting_semaphore<>& cores,
         std::int64_t panel_nodes, bool draw)
      : sweep_(sweep),
        files_(sweep.files_),
        group_(group),
        cores_(cores),
        panel_nodes_(panel_nodes),
        slice_begins_(group.size(), kUnknown),
        indptr_memory_(static_cast<std::size_t>(panel_nodes) * sizeof(std::int64_t) + 3 * kDirectAlignment),
        window_memory_(draw ? sweep.window_bytes_ : 0),
        indptr_engine_(make_read_engine(sweep.engine_, files_.indptr, kRangeDepth, indptr_memory_.bytes())) {
    if (draw) window_engine_ = make_read_engine(sweep.engine_, files_.indices, kRangeDepth, window_memory_.bytes());
    panel_.wanted.resize(static_cast<std::size_t>(panel_nodes) / kWordBits);
  }

  void visit(std::int64_t first) {
    panel_.first = first;
    panel_.last = std::min(first + panel_nodes_, files_.num_nodes);
    if (!find_wanted()) return;
    read_indptr();
    if (window_engine_ == nullptr) {
      count();
    } else {
      draw();
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
    for (const Expansion<Node>* expansion : group_) {
      for (const std::int32_t position : expansion->between(panel_.first, panel_.last)) {
        const auto i = static_cast<std::size_t>(expansion->nodes_[static_cast<std::size_t>(position)] - panel_.first);
        panel_.wanted[i / kWordBits] |= std::uint64_t{1} << (i % kWordBits);
        any = true;
      }
    }
    return any;
  }

  void read_indptr() {
    ranges_.clear();
    panel_.for_each_wanted([&](std::int64_t node) {
      const std::uint64_t begin = files_.indptr_offset + static_cast<std::uint64_t>(node) * sizeof(std::int64_t);
      append_range(ranges_, begin, begin + 2 * sizeof(std::int64_t));
    });
    const std::uint64_t start = files_.indptr_offset + static_cast<std::uint64_t>(panel_.first) * sizeof(std::int64_t);
    read(*indptr_engine_, align_down(start), indptr_memory_.bytes());
    panel_.indptr = indptr_memory_.bytes().data() + start % kDirectAlignment;
    std::int64_t previous = 0;
    panel_.for_each_wanted([&](std::int64_t node) {
      const std::int64_t begin = panel_.offset(node), end = panel_.offset(node + 1);
      if (begin < previous || begin > end || end > files_.num_edges) {
        throw std::out_of_range("indptr is damaged at node " + std::to_string(node));
      }
      previous = end;
    });
  }

  void read(ReadEngine& engine, std::uint64_t base, std::span<std::byte> memory) {
    if (sweep_.stopping_) throw std::runtime_error("the sweep was stopped");
    read_ranges(engine, ranges_, base, memory);
    std::uint64_t bytes = 0;
    for (const ByteRange& range : ranges_) bytes += range.bytes;
    sweep_.read_bytes_ += bytes;
  }

  void count() {
    const CoreLease lease(cores_);
    for (Expansion<Node>* expansion : group_) {
      const int fanout = expansion->fanout();
      for (const std::int32_t position : expansion->between(panel_.first, panel_.last)) {
        const auto i = static_cast<std::size_t>(position);
        const std::int64_t node = expansion->nodes_[i];
        const std::int64_t degree = panel_.offset(node + 1) - panel_.offset(node);
        const std::int64_t drawn = fanout < 0 ? degree : std::min<std::int64_t>(degree, fanout);
        if (drawn > std::numeric_limits<std::int32_t>::max()) throw_too_many_edges();
        expansion->indptr_[i + 1] = static_cast<std::int32_t>(drawn);
      }
    }
  }

  // Reads the panel's part of indices window by window. A node's edges may lie in several of them.
  void draw() {
    ranges_.clear();
    std::int64_t first_node = panel_.first, last_node = panel_.first;
    std::uint64_t base = 0;
    panel_.for_each_wanted([&](std::int64_t node) {
      std::uint64_t begin = edge_offset(panel_.offset(node));
      const std::uint64_t end = edge_offset(panel_.offset(node + 1));
      while (begin < end) {
        if (!ranges_.empty() && begin >= base + sweep_.window_bytes_) {
          draw_window(base, first_node, last_node);
          ranges_.clear();
        }
        if (ranges_.empty()) {
          base = align_down(begin);
          first_node = node;
        }
        const std::uint64_t here = std::min(end, base + sweep_.window_bytes_);
        append_range(ranges_, begin, here);
        last_node = node;
        begin = here;
      }
    });
    if (!ranges_.empty()) draw_window(base, first_node, last_node);
  }

  std::uint64_t edge_offset(std::int64_t edge) const {
    return files_.indices_offset + static_cast<std::uint64_t>(edge) * sizeof(Node);
  }

  void draw_window(std::uint64_t base, std::int64_t first_node, std::int64_t last_node) {
    read(*window_engine_, base, window_memory_.bytes());
    const CoreLease lease(cores_);
    const std::uint64_t skipped = base < files_.indices_offset ? 0 : base - files_.indices_offset;
    first_edge_ = static_cast<std::int64_t>((skipped + sizeof(Node) - 1) / sizeof(Node));
    const std::uint64_t limit = base + window_memory_.bytes().size() - files_.indices_offset;
    last_edge_ = static_cast<std::int64_t>(limit / sizeof(Node));
    edges_ = reinterpret_cast<const Node*>(window_memory_.bytes().data() + (edge_offset(first_edge_) - base));
    for (std::size_t g = 0; g < group_.size(); ++g) {
      Expansion<Node>* const expansion = group_[g];
      auto* const drawn = reinterpret_cast<Node*>(expansion->drawn_->bytes().data());
      for (const std::int32_t position : expansion->between(first_node, last_node + 1)) {
        const auto i = static_cast<std::size_t>(position);
        draw_node(*expansion, expansion->nodes_[i], drawn + expansion->indptr_[i], slice_begins_[g]);
      }
    }
  }

  // Writes those of the node's neighbours whose edges are in the window. `slice_begin` is what `draw_slice` knows.
  void draw_node(const Expansion<Node>& expansion, std::int64_t node, Node* drawn, std::int64_t& slice_begin) {
    const std::int64_t begin = panel_.offset(node), end = panel_.offset(node + 1);
    const int fanout = expansion.fanout();
    if (fanout < 0 || end - begin <= fanout) {
      const std::int64_t stop = std::min(end, last_edge_);
      for (std::int64_t edge = std::max(begin, first_edge_); edge < stop; ++edge) {
        drawn[edge - begin] = neighbor(edge);
      }
      return;
    }
    if (expansion.key_.slice_start) {
      draw_slice(begin, end, fanout, *expansion.key_.slice_start, drawn, slice_begin);
      return;
    }
    positions_.clear();
    draw_positions(expansion.key_, static_cast<int>(expansion.layer()), node, end - begin, fanout, positions_);
    for (std::size_t k = 0; k < positions_.size(); ++k) {
      const std::int64_t edge = begin + positions_[k];
      if (edge >= first_edge_ && edge < last_edge_) drawn[k] = neighbor(edge);
    }
  }

  // The window's part of a slice. Where the slice begins in the list is known once a window has that place: then
  // `slice_begin` says so to the windows that follow. Until then the list's first neighbours are kept, because a slice
  // near its end goes on with them.
  void draw_slice(std::int64_t begin, std::int64_t end, std::int64_t fanout, std::uint64_t slice_start, Node* drawn,
                  std::int64_t& slice_begin) {
    const std::int64_t degree = end - begin;
    const std::int64_t first = std::max(begin, first_edge_) - begin, stop = std::min(end, last_edge_) - begin;
    if (first == 0) slice_begin = kUnknown;
    if (slice_begin == kUnknown) {
      const std::span<const Node> here(edges_ + (begin + first - first_edge_), static_cast<std::size_t>(stop - first));
      const std::int64_t found = first + static_cast<std::int64_t>(first_at_or_after(here, slice_start));
      if (found + fanout > degree || found == stop) {
        for (std::int64_t i = first; i < std::min(found, fanout); ++i) drawn[i] = neighbor(begin + i);
      }
      if (found == stop) return;  // perhaps in the next window; after the last one, the slice is the list's beginning
      slice_begin = found;
      if (found + fanout > degree) std::copy_backward(drawn, drawn + (found + fanout - degree), drawn + fanout);
    }
    const std::int64_t last = std::min(stop, slice_begin + fanout);
    for (std::int64_t i = std::max(first, slice_begin); i < last; ++i) drawn[i - slice_begin] = neighbor(begin + i);
  }

  Node neighbor(std::int64_t edge) const {
    const Node node = edges_[edge - first_edge_];
    if (node < 0 || node >= files_.num_nodes) {
      throw std::out_of_range("neighbour " + std::to_string(node) + " is not in [0, " +
                              std::to_string(files_.num_nodes) + ")");
    }
    return node;
  }

  TopologySweep& sweep_;
  const TopologyFiles& files_;
  const std::span<Expansion<Node>* const> group_;
  std::counting_semaphore<>& cores_;
  const std::int64_t panel_nodes_;
  static constexpr std::int64_t kUnknown = -1;
  std::vector<std::int64_t> slice_begins_;  // per expansion, of the node whose list lies in several windows
  Panel panel_{};
  PageMemory indptr_memory_, window_memory_;  // outlive the engines, which wait for what is in flight
  std::unique_ptr<ReadEngine> indptr_engine_, window_engine_;
  std::vector<ByteRange> ranges_;
  std::vector<std::int64_t> positions_;
  const Node* edges_ = nullptr;  // of the window: those of edges [first_edge_, last_edge_)
  std::int64_t first_edge_ = 0, last_edge_ = 0;
};

TopologySweep::TopologySweep(const TopologyFiles& files, EngineKind engine, std::size_t window_bytes, unsigned threads)
    : files_(files), engine_(engine), window_bytes_(window_bytes), threads_(threads) {
  if (window_bytes == 0 || window_bytes % kDirectAlignment != 0) {
    throw std::invalid_argument("window_bytes: expected a multiple of 4096");
  }
  if (threads == 0) throw std::invalid_argument("threads: expected at least 1");
  // .npy files have offsets like that; then no number lies across the border of two pages.
  if (files_.indptr_offset % sizeof(std::int64_t) != 0 || files_.indices_offset % sizeof(std::int64_t) != 0) {
    throw std::invalid_argument("offsets of data: expected multiples of 8");
  }
}

template <typename Node>
void TopologySweep::sweep(std::span<Expansion<Node>* const> group, bool draw) {
  const auto panel_nodes = static_cast<std::int64_t>(window_bytes_ / 2 / sizeof(std::int64_t) / kWordBits * kWordBits);
  const std::int64_t num_panels = (files_.num_nodes + panel_nodes - 1) / panel_nodes;
  std::counting_semaphore<> cores(threads_);
  std::atomic<std::int64_t> next = 0;
  const auto num_readers = std::min<std::int64_t>(num_panels, threads_ * kReadersPerThread);
  run_on_threads(static_cast<unsigned>(num_readers), [&] {
    Reader<Node> reader(*this, group, cores, panel_nodes, draw);
    try {
      for (std::int64_t panel = next++; panel < num_panels; panel = next++) reader.visit(panel * panel_nodes);
    } catch (...) {
      next = num_panels;  // the others need not go on
      throw;
    }
  });
}

template <typename Node>
void TopologySweep::count(std::span<Expansion<Node>* const> group) {
  for_each_in_parallel(threads_, group.size(), [&](std::size_t i) { group[i]->start_layer(); });
  sweep(group, false);
  for (Expansion<Node>* expansion : group) expansion->finish_counting();
}

template <typename Node>
void TopologySweep::draw(std::span<Expansion<Node>* const> group) {
#ifdef __GLIBC__
  malloc_trim(0);  // tables and vectors of finished minibatches: malloc keeps what has been freed, a budget cannot
#endif
  for (Expansion<Node>* expansion : group) {
    if (expansion->indptr_.empty()) throw std::logic_error("draw comes after count");
    expansion->drawn_.emplace(static_cast<std::size_t>(expansion->drawn_bytes()));
  }
  sweep(group, true);
}

template class Expansion<std::int32_t>;
template class Expansion<std::int64_t>;
template void TopologySweep::count(std::span<Expansion<std::int32_t>* const>);
template void TopologySweep::count(std::span<Expansion<std::int64_t>* const>);
template void TopologySweep::draw(std::span<Expansion<std::int32_t>* const>);
template void TopologySweep::draw(std::span<Expansion<std::int64_t>* const>);

}  // namespace diskgnn
