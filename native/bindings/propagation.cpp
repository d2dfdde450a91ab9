// Hops of whole neighbourhoods: which rows they need, their edges, and their sums.
#include <algorithm>

#include "bindings/arrays.h"
#include "propagation/edge_pruning.h"
#include "propagation/neighbour_means.h"
#include "propagation/ranked_nodes.h"
#include "propagation/stripes.h"

namespace diskgnn {
namespace {

using Words = In<std::uint64_t>;
using BoundSet = std::tuple<Words, In<std::int64_t>, std::int64_t>;  // bits, counts of members, nodes

RankedNodes ranked_nodes(const BoundSet& set) {
  const auto& [words, counts, num_nodes] = set;
  return {span_of(words), span_of(counts), num_nodes};
}

void count_members(Words words, Out<std::int64_t> counts) {
  constexpr std::size_t kBlock = RankedNodes::kBlockWords, kCounts = RankedNodes::kBlockCounts;
  require(words.size() % kBlock == 0 && counts.size() == words.size() / kBlock * kCounts + 1,
          "counts do not fit the words");
  nb::gil_scoped_release release;
  std::int64_t found = 0;
  for (std::size_t block = 0; block < words.size() / kBlock; ++block) {
    std::uint64_t in_block = 0, before_words = 0;
    for (std::size_t w = 0; w < kBlock; ++w) {
      if (w > 0) before_words |= in_block << RankedNodes::kCountBits * (w - 1);
      in_block += static_cast<std::uint64_t>(std::popcount(words.data()[block * kBlock + w]));
    }
    counts.data()[block * kCounts] = found;
    counts.data()[block * kCounts + 1] = static_cast<std::int64_t>(before_words);
    found += static_cast<std::int64_t>(in_block);
  }
  counts.data()[counts.size() - 1] = found;
}

void row_ranks(const BoundSet& set, In<std::int64_t> nodes, Out<std::int64_t> ranks) {
  require(nodes.size() == ranks.size(), "nodes and ranks differ in length");
  nb::gil_scoped_release release;
  const RankedNodes members = ranked_nodes(set);
  for (std::size_t i = 0; i < nodes.size(); ++i) ranks.data()[i] = members.rank(nodes.data()[i]);
}

template <typename Id>
EdgePiece<Id> edge_piece(std::int64_t first_node, const In<std::int64_t>& offsets, std::int64_t begin,
                         const In<Id>& sources, const In<float>& weights) {
  require(weights.size() == 0 || weights.size() == sources.size(), "weights and sources differ in length");
  return {first_node, span_of(offsets), begin, span_of(sources), span_of(weights)};
}

// Without branches: several lists are looked at at a time.
template <typename Id>
void require_lists(const EdgeLists<Id>& lists) {
  bool ascend = true, have_own = true;
  for (std::size_t i = 0; i + 1 < lists.offsets.size(); ++i) {
    const std::int64_t begin = lists.offsets[i], end = lists.offsets[i + 1];
    ascend &= begin <= end;
    have_own &= begin < end || (lists.goes_on && i + 2 == lists.offsets.size());
  }
  require(ascend, "offsets do not ascend");
  require(have_own || !lists.skips_own, "a list without the node itself");
}

template <typename Id>
void bind_edges(nb::module_& m) {
  m.def(
      "mark_sources",
      [](std::int64_t first_node, In<std::int64_t> offsets, std::int64_t begin, In<Id> sources, const BoundSet& wanted,
         Out<std::uint64_t> marked, std::int64_t num_sources) {
        const auto piece = edge_piece<Id>(first_node, offsets, begin, sources, In<float>());
        nb::gil_scoped_release release;
        return mark_sources(piece, ranked_nodes(wanted), span_of(marked), num_sources);
      },
      "first_node"_a, "offsets"_a.noconvert(), "begin"_a, "sources"_a.noconvert(), "wanted"_a, "marked"_a.noconvert(),
      "num_sources"_a);
  m.def(
      "prune_edges",
      [](std::int64_t first_node, In<std::int64_t> offsets, std::int64_t begin, In<Id> sources, In<float> weights,
         const BoundSet& wanted, const BoundSet& sources_set, bool add_own) {
        const auto piece = edge_piece<Id>(first_node, offsets, begin, sources, weights);
        PrunedEdges<Id> found;
        {
          nb::gil_scoped_release release;
          found = prune_edges(piece, ranked_nodes(wanted), ranked_nodes(sources_set), add_own);
        }
        return nb::make_tuple(to_numpy(std::move(found.offsets)), to_numpy(std::move(found.sources)),
                              to_numpy(std::move(found.weights)), found.continues, found.goes_on);
      },
      "first_node"_a, "offsets"_a.noconvert(), "begin"_a, "sources"_a.noconvert(), "weights"_a.noconvert(), "wanted"_a,
      "sources_set"_a, "add_own"_a);
  m.def(
      "mean_rows",
      [](In<std::int64_t> offsets, In<Id> sources, In<float> weights, bool continues, bool goes_on, bool skips_own,
         Out<double> carry, In<float> rows, std::size_t width, Out<float> target, unsigned threads) {
        require(offsets.size() > 1 && width > 0 && threads > 0, "no rows, no columns, or no threads");
        require(weights.size() == 0 || weights.size() == sources.size(), "weights and sources differ in length");
        require(carry.size() == width + 1, "carry does not fit the columns");
        require(target.size() == (offsets.size() - 1) * width, "target does not fit the rows");
        const EdgeLists<Id> lists{span_of(offsets), span_of(sources), span_of(weights), continues, goes_on, skips_own};
        nb::gil_scoped_release release;
        require(lists.offsets.front() == 0 && lists.offsets.back() == static_cast<std::int64_t>(sources.size()),
                "offsets do not fit the sources");
        require_lists(lists);
        mean_rows(lists, span_of(carry), span_of(rows), width, span_of(target), threads);
      },
      "offsets"_a.noconvert(), "sources"_a.noconvert(), "weights"_a.noconvert(), nb::kw_only(), "continues"_a,
      "goes_on"_a, "skips_own"_a, "carry"_a.noconvert(), "rows"_a.noconvert(), "width"_a, "target"_a.noconvert(),
      "threads"_a);
}

void scale_all_rows(Out<float> rows, std::size_t width, In<float> scales) {
  require(width > 0 && rows.size() / width == scales.size() && rows.size() % width == 0, "scales do not fit the rows");
  nb::gil_scoped_release release;
  scale_rows(span_of(rows), width, span_of(scales));
}

void add_edge_weights(In<std::int64_t> offsets, std::int64_t begin, In<float> weights, Out<double> sums) {
  require(offsets.size() == sums.size() + 1, "sums do not fit the offsets");
  nb::gil_scoped_release release;
  add_weights(span_of(offsets), begin, span_of(weights), span_of(sums));
}

nb::tuple cut_rows(Bytes data, In<bool> wanted, std::size_t row_bytes, std::size_t stripe_bytes,
                   std::size_t value_bytes, std::uint32_t exponent_bits, Out<std::uint8_t> stripes) {
  require(row_bytes > 0 && stripe_bytes > 0, "rows or stripes of no bytes");
  require(exponent_bits == 0 || value_bytes == 2 || value_bytes == 4, "value_bytes: expected 2 or 4");
  require(exponent_bits == 0 || row_bytes % value_bytes == 0, "values do not fit the rows");
  require(data.size() == wanted.size() * row_bytes, "data has not the size of its rows");
  UnusualRows unusual{};
  {
    nb::gil_scoped_release release;
    const auto num_wanted = static_cast<std::size_t>(std::ranges::count(span_of(wanted), true));
    require(stripes.size() == num_wanted * row_bytes, "stripes have not the size of the wanted rows");
    unusual =
        cut_stripes(std::as_bytes(span_of(data)), span_of(wanted),
                    {row_bytes, stripe_bytes, value_bytes, exponent_bits}, std::as_writable_bytes(span_of(stripes)));
  }
  return nb::make_tuple(unusual.count, unusual.first);
}

void place_some_columns(In<float> values, std::size_t width, std::size_t first, std::size_t count, Out<float> target,
                        std::size_t target_width, std::size_t target_first) {
  require(width > 0 && first <= width && count <= width - first, "columns are not those of the values");
  require(target_first <= target_width && count <= target_width - target_first, "columns do not fit the target");
  require(values.size() % width == 0 && values.size() / width * target_width == target.size(),
          "values and target differ in rows");
  nb::gil_scoped_release release;
  place_columns(span_of(values), width, first, count, span_of(target), target_width, target_first);
}

}  // namespace

void bind_propagation(nb::module_& m) {
  m.attr("RANKED_BLOCK_NODES") = 64 * RankedNodes::kBlockWords;
  m.attr("RANKED_BLOCK_COUNTS") = RankedNodes::kBlockCounts;
  m.def("count_members", &count_members, "words"_a.noconvert(), "counts"_a.noconvert());
  m.def("row_ranks", &row_ranks, "members"_a, "nodes"_a.noconvert(), "ranks"_a.noconvert());
  m.def("add_weights", &add_edge_weights, "offsets"_a.noconvert(), "begin"_a, "weights"_a.noconvert(),
        "sums"_a.noconvert());
  m.def("scale_rows", &scale_all_rows, "rows"_a.noconvert(), "width"_a, "scales"_a.noconvert());
  m.def("cut_stripes", &cut_rows, "data"_a.noconvert(), "wanted"_a.noconvert(), nb::kw_only(), "row_bytes"_a,
        "stripe_bytes"_a, "value_bytes"_a, "exponent_bits"_a, "stripes"_a.noconvert());
  m.def("place_columns", &place_some_columns, "values"_a.noconvert(), "width"_a, "first"_a, "count"_a,
        "target"_a.noconvert(), "target_width"_a, "target_first"_a);
  bind_edges<std::int32_t>(m);
  bind_edges<std::int64_t>(m);
}

}  // namespace diskgnn
