#include "propagation/edge_pruning.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "files/cpu_features.h"

namespace diskgnn {
namespace {

struct List {
  std::int64_t node;
  std::size_t begin, end;  // of what of it is in the piece
  bool is_begun_before, goes_on;
};

// Calls `work` with the lists of wanted nodes.
template <typename Id, typename Work>
void for_each_list(const EdgePiece<Id>& piece, const RankedNodes& wanted, const Work& work) {
  const auto end = piece.begin + static_cast<std::int64_t>(piece.sources.size());
  for (std::size_t i = 0; i + 1 < piece.offsets.size(); ++i) {
    const std::int64_t node = piece.first_node + static_cast<std::int64_t>(i);
    const std::int64_t first = piece.offsets[i], last = piece.offsets[i + 1];
    if (first > last) throw std::invalid_argument("offsets that do not ascend");
    if (!wanted.has(node)) continue;
    const auto from = std::clamp(first, piece.begin, end), to = std::clamp(last, from, end);
    work(List{node, static_cast<std::size_t>(from - piece.begin), static_cast<std::size_t>(to - piece.begin),
              first<piece.begin, last> end});
  }
}

template <typename Id>
inline __attribute__((always_inline)) void rank_all(const RankedNodes& members, std::span<const Id> nodes, Id* ranks) {
  bool are_members = true;  // of all, without a branch
  for (const Id node : nodes) {
    are_members &= members.has(node);
    *ranks++ = static_cast<Id>(members.rank(node));
  }
  if (!are_members) throw std::out_of_range("edges that were others when they were read before");
}

template <typename Id>
void rank_each(const RankedNodes& members, std::span<const Id> nodes, Id* ranks) {
  rank_all(members, nodes, ranks);
}

#if defined(__x86_64__)
template <typename Id>
__attribute__((target("popcnt"))) void rank_each_popcnt(const RankedNodes& members, std::span<const Id> nodes,
                                                        Id* ranks) {
  rank_all(members, nodes, ranks);
}
#endif

template <typename Id>
auto ranking() {
#if defined(__x86_64__)
  static const bool with_popcnt = has_popcnt();
  if (with_popcnt) return rank_each_popcnt<Id>;
#endif
  return rank_each<Id>;
}

}  // namespace

template <typename Id>
std::int64_t mark_sources(const EdgePiece<Id>& piece, const RankedNodes& wanted, std::span<std::uint64_t> marked,
                          std::int64_t num_nodes) {
  std::int64_t num_edges = 0;
  for_each_list(piece, wanted, [&](const List& list) {
    num_edges += static_cast<std::int64_t>(list.end - list.begin);
    for (std::size_t e = list.begin; e < list.end; ++e) {
      const auto source = static_cast<std::uint64_t>(piece.sources[e]);
      if (source >= static_cast<std::uint64_t>(num_nodes) || source / 64 >= marked.size()) {
        throw std::out_of_range("a source that is no node");
      }
      marked[source / 64] |= std::uint64_t{1} << (source & 63);
    }
  });
  return num_edges;
}

template <typename Id>
PrunedEdges<Id> prune_edges(const EdgePiece<Id>& piece, const RankedNodes& wanted, const RankedNodes& sources_set,
                            bool add_own) {
  std::size_t num_rows = 0, num_edges = 0;
  for_each_list(piece, wanted, [&](const List& list) {
    ++num_rows;
    num_edges += list.end - list.begin + (add_own && !list.goes_on ? 1 : 0);
  });
  PrunedEdges<Id> found;
  found.offsets.resize(num_rows + 1);
  found.sources.resize(num_edges);
  if (!piece.weights.empty()) found.weights.resize(num_edges);

  const auto rank = ranking<Id>();
  std::size_t row = 0, edge = 0;
  found.offsets[0] = 0;
  for_each_list(piece, wanted, [&](const List& list) {
    if (row == 0) found.continues = list.is_begun_before;
    found.goes_on = list.goes_on;
    const std::size_t count = list.end - list.begin;
    rank(sources_set, piece.sources.subspan(list.begin, count), found.sources.data() + edge);
    if (!piece.weights.empty()) std::copy_n(piece.weights.data() + list.begin, count, found.weights.data() + edge);
    edge += count;
    if (add_own && !list.goes_on) {
      const Id own = static_cast<Id>(list.node);
      rank(sources_set, {&own, 1}, found.sources.data() + edge);
      if (!piece.weights.empty()) found.weights[edge] = 1.0F;
      ++edge;
    }
    found.offsets[++row] = static_cast<std::int64_t>(edge);
  });
  return found;
}

template std::int64_t mark_sources(const EdgePiece<std::int32_t>&, const RankedNodes&, std::span<std::uint64_t>,
                                   std::int64_t);
template std::int64_t mark_sources(const EdgePiece<std::int64_t>&, const RankedNodes&, std::span<std::uint64_t>,
                                   std::int64_t);
template PrunedEdges<std::int32_t> prune_edges(const EdgePiece<std::int32_t>&, const RankedNodes&, const RankedNodes&,
                                               bool);
template PrunedEdges<std::int64_t> prune_edges(const EdgePiece<std::int64_t>&, const RankedNodes&, const RankedNodes&,
                                               bool);

}  // namespace diskgnn
