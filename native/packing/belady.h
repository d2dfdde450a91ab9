// Which rows the cpu tier holds at each minibatch of a cyclic sequence: Belady's MIN with bypass (Belady, 1966),
// at the granularity of minibatches. Optimal for a sequence that is played once, since every future access is known;
// for one that is repeated, wherever the residents settle.
//
// An *arc* is the time between two consecutive accesses of a node: who keeps its row meanwhile saves a read. Arcs with
// the same end are worth the same, and MIN drops those that end last. So *how many* rows are read depends only on how
// many arcs of each minibatch end where (`belady_misses`). *Which* arcs are kept is free: those that begin last, as
// they occupy a slot for the shortest time (`BeladyPlanner`). Then nothing is admitted that is evicted unused.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packing/next_uses.h"

namespace diskgnn {

// The arcs of a sequence of B minibatches, counted: those that begin in minibatch t are counts[bounds[t]] up to
// counts[bounds[t + 1]], by their next use, which is minibatch t < n < B in the same cycle or n - B in the next.
struct ArcCounts {
  std::span<const std::int64_t> bounds;  // [B + 1]
  std::span<const UseCount> counts;
};

// The rows that each minibatch reads with a cache of `capacity` rows: [B]. The same in every cycle, and the fewest
// unless MIN itself never does the same in two cycles. `from_empty`: once, with a cache that is empty at the start.
std::vector<std::int32_t> belady_misses(const ArcCounts& arcs, std::int64_t capacity, bool from_empty);

// Where one minibatch's rows are. Addresses: [0, S) static row, [S, S+C) slot, [S+C, S+C+R) row of the extent.
template <typename Node>
struct Placement {
  PageArray<std::int32_t> addresses;   // [U]
  PageArray<Node> disk_nodes;          // [R] ascending: the extent's rows
  PageArray<std::int32_t> admissions;  // [A * 2]: extent row, slot; applied after the minibatch is assembled
};

// Gives slots to the arcs that are kept, in one pass over the sequence, once `find_initial` went over its end.
class BeladyPlanner {
 public:
  // `location` [N] is the only node-sized memory; on entry 0, or for a static row 1 + its rank, which is its address.
  // So pages of nodes that no minibatch needs are never touched.
  // `misses` [B] is what `belady_misses` said, `first_uses` [B] how many arcs come from the cycle before.
  BeladyPlanner(std::span<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
                std::span<const std::int32_t> misses, std::span<const std::int32_t> first_uses);

  std::size_t num_nodes() const { return location_.size(); }
  std::size_t num_batches() const { return to_find_.size(); }

  // Takes minibatches from the last one backwards. True when all rows are found that are resident when a cycle starts:
  // the others need not be looked at. `nodes` are ascending.
  template <typename Node>
  bool find_initial(std::span<const Node> nodes, std::span<const std::int32_t> next_uses);

  // The next minibatch, from the first one on. `nodes` [U] are ascending, and input order[i] of the minibatch is
  // nodes[i]. `next_uses` of static rows are -1.
  template <typename Node>
  Placement<Node> place(std::span<const Node> nodes, std::span<const std::int32_t> order,
                        std::span<const std::int32_t> next_uses);

  // Nodes of the rows resident when a cycle starts, by slot; ascending.
  const std::vector<std::int64_t>& initial_cpu_nodes();

  // After the last minibatch: [C] a permutation; the next cycle's slot i takes the row in this cycle's slot [i].
  std::vector<std::int32_t> next_cycle_slots() const;

 private:
  void start_cycle();

  std::span<std::int32_t> location_;  // 1 + the row's address, 0 while it is on disk
  std::int32_t num_static_, capacity_;
  std::vector<std::int32_t> dropped_;  // [2B + 1] by next use + 1: arcs that are still to be dropped, the first ones
  std::vector<std::int32_t> to_find_;  // [B] by first use: residents that `find_initial` has not seen yet
  std::int64_t num_to_find_ = 0;       // their sum
  std::size_t num_initial_ = 0;        // those that it has seen
  bool started_ = false;
  std::vector<std::int64_t> initial_nodes_;
  std::vector<std::int32_t> free_slots_;          // the last one is taken first
  std::vector<std::int32_t> leaving_, admitted_;  // of the minibatch at hand; kept, as fresh memory is dear
};

}  // namespace diskgnn
