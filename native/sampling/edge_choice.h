// Drawing from a list of which not every edge may be drawn, or not every edge alike: filter, then choose.
//
// Every choice is the same: each edge that passes gets a 64-bit key, and the `capacity` edges with the smallest ones
// are drawn. So a list can pass by in parts, and memory is that of what is drawn, not that of the list.
//   uniform, independent    random bits of the edge
//   uniform, coordinated    how far the source's hash is from where the slice begins: the slice of what passes
//   weighted                an exponential variate divided by the weight (Efraimidis and Spirakis, IPL 2006): of the
//                           edge, or of the source where draws are coordinated
//   latest                  the time, latest first
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "sampling/draw_request.h"

namespace diskgnn {

struct Candidate {
  std::uint64_t key;
  std::int64_t position;  // in the CSC
  std::int64_t source;

  bool operator<(const Candidate& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

// Consecutive edges of one list.
template <typename Index>
struct EdgeRun {
  std::span<const Index> sources;
  const std::int64_t* times;  // or nullptr
  const float* weights;       // or nullptr
  std::int64_t begin;         // of the list in the CSC
  std::int64_t first;         // position of the first of these in the list
};

// What holds for all lists of one edge type.
struct ChoiceRules {
  std::int64_t num_sources;
  std::span<const std::int64_t> source_times;  // [num_sources], or empty
  bool latest;
  std::optional<std::uint64_t> slice_start;  // draws are coordinated
  bool by_time;                              // lists are in the order of how old edges are
};

// What holds for one list.
struct ListRules {
  std::uint64_t state;  // names its draws, if they are independent
  TimeRange times;      // of what may be drawn
  ExcludedSources excluded;
};

// The edges drawn so far from one list: the smallest of those seen, as many as there are `slots`.
class Choice {
 public:
  // `filled` of the slots are in use, by this choice at an earlier part of the list.
  Choice(std::span<Candidate> slots, std::size_t filled) : slots_(slots), filled_(filled) {}

  // Whether it is among the smallest so far.
  bool takes(const Candidate& candidate) const {
    return filled_ < slots_.size() || (!slots_.empty() && candidate < slots_.front());
  }

  // Adds what it takes.
  void add(const Candidate& candidate) {
    if (filled_ < slots_.size()) {
      slots_[filled_++] = candidate;
      if (filled_ == slots_.size()) std::make_heap(slots_.begin(), slots_.end());
    } else {
      std::pop_heap(slots_.begin(), slots_.end());
      slots_.back() = candidate;
      std::push_heap(slots_.begin(), slots_.end());
    }
  }

  std::size_t filled() const { return filled_; }
  std::size_t capacity() const { return slots_.size(); }

 private:
  std::span<Candidate> slots_;
  std::size_t filled_;
};

// The part of `run` that may pass the filter: of lists in the order of time, what is in the range of times. Looks at
// O(log n) edges. Throws std::out_of_range for a source that is none.
template <typename Index>
EdgeRun<Index> in_range(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run);

// Offers the edges of `run` that pass the filter; the latest of a list in the order of time without looking at the
// others. Throws std::out_of_range for a source that is none.
template <typename Index>
void choose(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run, Choice& choice);

// What was drawn, in the order of the list.
void sort_by_position(std::span<Candidate> drawn);

[[noreturn]] void throw_no_source(std::int64_t node, std::int64_t num_sources);

}  // namespace diskgnn
