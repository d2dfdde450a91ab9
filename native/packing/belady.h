// Which rows the cpu tier holds at each minibatch of a cyclic sequence: Belady's MIN with bypass (Belady, 1966),
// at the granularity of minibatches. Optimal for a sequence that is played once, since every future access is known;
// for one that is repeated, wherever the residents settle (see the rounds below).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace diskgnn {

// Where one minibatch's rows are. Addresses: [0, S) static row, [S, S+C) slot, [S+C, S+C+R) row of the extent.
template <typename Node>
struct Placement {
  std::vector<std::int32_t> addresses;   // [U]
  std::vector<Node> disk_nodes;          // [R] ascending: the extent's rows
  std::vector<std::int32_t> admissions;  // [A * 2]: extent row, slot; applied after the minibatch is assembled
};

// Adds 1 to the count of each node.
template <typename Node>
void count_nodes(std::span<std::int32_t> counts, std::span<const Node> nodes);

// One step of the backward pass that finds next uses: returns what `next_use` [N] said for `nodes` and then sets it to
// `batch` for them.
template <typename Node>
std::vector<std::int32_t> exchange_next_uses(std::span<std::int32_t> next_use, std::span<const Node> nodes,
                                             std::int32_t batch);

// Runs over the sequence in rounds. Warm-up rounds find which rows are resident when a cycle ends, starting from
// an empty tier and then from what the round before ended with; the last round (`place`) starts with these rows
// and is forced to end with them, so that the schedule can be repeated for ever.
//
// Next uses are minibatch numbers: in the same cycle t < n < B, in the next one n - B is the row's first use.
class BeladyPlanner {
 public:
  // `location` [N] is the only node-sized memory; on entry -1, or -2 - rank for a static row.
  BeladyPlanner(std::span<std::int32_t> location, std::int32_t num_static, std::int32_t capacity,
                std::int32_t num_batches);

  // One minibatch of a warm-up round. True once the residents are those of the round before at the same minibatch:
  // from there on the two rounds are the same, so this one can stop.
  template <typename Node>
  bool warm_up(std::span<const Node> nodes, std::span<const std::int32_t> next_uses);

  // Ends a warm-up round (complete or stopped): the residents get slots in node order and wait for their first
  // uses.
  void start_cycle();

  template <typename Node>
  Placement<Node> place(std::span<const Node> nodes, std::span<const std::int32_t> next_uses);

  // Nodes of the rows resident when a cycle starts, by slot; ascending.
  const std::vector<std::int64_t>& initial_cpu_nodes() const { return initial_nodes_; }

  // After the last round: [C] a permutation; the next cycle's slot i takes the row in this cycle's slot [i].
  std::vector<std::int32_t> next_cycle_slots() const;

 private:
  struct Hit {
    std::int32_t location;
    std::int32_t input;
  };
  struct Miss {
    std::int64_t node;
    std::int32_t input;
    std::int32_t next_use;
  };
  struct Candidate {
    std::int32_t next_use;  // kMust for a row that the next cycle starts with
    std::int32_t row;       // of the extent
  };

  template <typename Node>
  void settle(std::span<const Node> nodes, std::span<const std::int32_t> next_uses, Placement<Node>* placement);
  void admit(std::vector<std::int32_t>* admissions);
  void collect_initial();
  void occupy(std::int32_t slot, std::int64_t node);
  void wait(std::int32_t slot, std::int32_t next_use);
  void release(std::int32_t slot);
  std::int32_t take_slot(std::int32_t next_use);
  bool starts_next_cycle(std::int64_t node) const {
    return ((initial_[static_cast<std::size_t>(node / 64)] >> (node % 64)) & 1) != 0;
  }

  std::span<std::int32_t> location_;
  std::int32_t num_static_, capacity_, num_batches_;
  std::int32_t now_ = 0;
  bool forced_ = false;                             // the last round: must end with the initial rows
  std::uint64_t fingerprint_ = 0;                   // of the set of residents
  std::vector<std::uint64_t> fingerprints_;         // [B] after each minibatch of the round before
  std::int32_t furthest_ = 0;                       // no resident is needed later than this
  std::vector<std::vector<std::int32_t>> waiting_;  // [2B + 1] slots by their next use
  std::vector<std::int64_t> node_of_slot_;          // [C], -1 when free
  std::vector<std::int32_t> free_slots_;
  std::vector<std::int64_t> initial_nodes_;
  std::vector<std::int32_t> initial_uses_;  // the first use of each
  std::vector<std::uint64_t> initial_;      // [N] bits
  // Of the minibatch at hand; kept, as fresh memory is dear.
  std::vector<Hit> hits_;
  std::vector<Miss> misses_, sorted_misses_;
  std::vector<Candidate> candidates_, sorted_candidates_;
};

}  // namespace diskgnn
