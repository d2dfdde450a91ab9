#include "graph/csc_builder.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "graph/neighbor_order.h"
#include "graph/neighbor_sort.h"

namespace diskgnn {

template <class Id>
std::int64_t count_edges(Ends<Id> src, Ends<Id> dst, EdgeRange range, int shift, std::span<std::int64_t> bin_edges) {
  const auto sources = static_cast<std::uint64_t>(range.num_sources);
  const auto nodes = static_cast<std::uint64_t>(range.num_nodes);
  for (std::size_t i = 0; i < src.size(); ++i) {
    // A negative id is a huge unsigned one.
    const auto from = static_cast<std::uint64_t>(static_cast<std::int64_t>(src[i]));
    const auto to = static_cast<std::uint64_t>(static_cast<std::int64_t>(dst[i]));
    if (from >= sources || to >= nodes) return static_cast<std::int64_t>(i);
    ++bin_edges[to >> shift];
  }
  return static_cast<std::int64_t>(src.size());
}

template <class Id, class Index>
std::int64_t scatter_edges(Ends<Id> src, Ends<Id> dst, bool reverse, std::int64_t first,
                           const EdgeBuffers<Index>& buffers) {
  const auto& [range, shift, bucket_of_bin, buffer, cursors, ends] = buffers;
  const auto sources = static_cast<std::uint64_t>(range.num_sources);
  const auto nodes = static_cast<std::uint64_t>(range.num_nodes);
  const std::size_t count = src.size() << static_cast<int>(reverse);
  for (std::size_t i = static_cast<std::size_t>(first); i < count; ++i) {
    const std::size_t edge = i >> static_cast<int>(reverse);
    const bool backwards = reverse && (i & 1) != 0;
    const Id tail = backwards ? dst[edge] : src[edge], head = backwards ? src[edge] : dst[edge];
    // Ids were checked by count_edges; a stream that differs the second time must not write elsewhere.
    const auto from = static_cast<std::uint64_t>(static_cast<std::int64_t>(tail));
    const auto to = static_cast<std::uint64_t>(static_cast<std::int64_t>(head));
    const auto bin = to >> shift;
    if (from >= sources || to >= nodes || bin >= bucket_of_bin.size()) throw std::out_of_range("id outside the graph");
    const auto bucket = static_cast<std::size_t>(bucket_of_bin[bin]);
    if (bucket >= cursors.size()) throw std::out_of_range("a bin has no bucket");
    if (cursors[bucket] == ends[bucket]) return static_cast<std::int64_t>(i);
    buffer[static_cast<std::size_t>(cursors[bucket]++)] = {static_cast<Index>(tail), static_cast<Index>(head)};
  }
  return static_cast<std::int64_t>(count);
}

template <class Index>
std::int64_t sort_bucket(std::span<const Edge<Index>> edges, std::int64_t first_node, bool self_loops,
                         bool drop_duplicates, std::span<std::int64_t> degrees, std::span<Index> indices) {
  const auto num_nodes = static_cast<std::uint64_t>(degrees.size());
  std::fill(degrees.begin(), degrees.end(), 0);
  for (const auto& edge : edges) {
    const auto column = static_cast<std::uint64_t>(edge.dst - first_node);
    if (column >= num_nodes) throw std::out_of_range("destination outside its bucket");
    ++degrees[column];
  }

  // `degrees` serves as cursors: where the next source of each column goes. A column that may get a self-loop
  // starts one place later, so that there is room for it.
  const std::int64_t spare = self_loops ? 1 : 0;
  std::int64_t begin = 0;
  for (auto& degree : degrees) {
    const std::int64_t count = degree;
    degree = begin;
    begin += count + spare;
  }
  assert(begin <= static_cast<std::int64_t>(indices.size()));
  for (const auto& edge : edges) {
    indices[static_cast<std::size_t>(degrees[static_cast<std::size_t>(edge.dst - first_node)]++)] = edge.src;
  }

  const auto precedes = [](Index left, Index right) { return order_hash(left) < order_hash(right); };
  // Finish the columns in order, closing the gaps. What is written never overtakes what is read.
  NeighborSort sort;
  begin = 0;
  auto out = indices.begin();
  for (std::size_t column = 0; column < degrees.size(); ++column) {
    const auto from = indices.begin() + begin;
    auto to = indices.begin() + degrees[column];
    begin = degrees[column] + spare;
    sort.sort(std::span(from, to));
    if (drop_duplicates) to = std::unique(from, to);
    if (self_loops) {
      const auto node = static_cast<Index>(first_node + static_cast<std::int64_t>(column));
      const auto place = std::lower_bound(from, to, node, precedes);
      if (place == to || *place != node) {
        std::copy_backward(place, to, to + 1);
        *place = node;
        ++to;
      }
    }
    degrees[column] = to - from;
    out = out == from ? to : std::copy(from, to, out);
  }
  return out - indices.begin();
}

template <class Index>
void sort_bucket_with_order(std::span<const Edge<Index>> edges, std::span<const std::int64_t> times,
                            std::int64_t first_node, std::span<std::int64_t> degrees, std::span<Index> indices,
                            std::span<std::int64_t> order) {
  assert(times.empty() || times.size() == edges.size());
  assert(indices.size() == edges.size() && order.size() == edges.size());
  const auto num_nodes = static_cast<std::uint64_t>(degrees.size());
  std::fill(degrees.begin(), degrees.end(), 0);
  for (const auto& edge : edges) {
    const auto column = static_cast<std::uint64_t>(edge.dst - first_node);
    if (column >= num_nodes) throw std::out_of_range("destination outside its bucket");
    ++degrees[column];
  }
  // `degrees` serves as cursors: where the next edge of each column goes.
  std::int64_t begin = 0;
  for (auto& degree : degrees) {
    const std::int64_t count = degree;
    degree = begin;
    begin += count;
  }
  for (std::size_t i = 0; i < edges.size(); ++i) {
    auto& cursor = degrees[static_cast<std::size_t>(edges[i].dst - first_node)];
    order[static_cast<std::size_t>(cursor++)] = static_cast<std::int64_t>(i);
  }
  const auto source = [&](std::int64_t i) { return edges[static_cast<std::size_t>(i)].src; };
  const auto time = [&](std::int64_t i) { return times.empty() ? 0 : times[static_cast<std::size_t>(i)]; };
  const auto precedes = [&](std::int64_t left, std::int64_t right) {
    return std::tuple(time(left), order_hash(source(left)), left) <
           std::tuple(time(right), order_hash(source(right)), right);
  };
  begin = 0;
  for (auto& degree : degrees) {
    const std::int64_t end = degree;
    std::sort(order.begin() + begin, order.begin() + end, precedes);
    degree = end - begin;
    begin = end;
  }
  std::transform(order.begin(), order.end(), indices.begin(), source);
}

#define DISKGNN_INSTANTIATE(Id)                                                                                   \
  template std::int64_t count_edges(Ends<Id>, Ends<Id>, EdgeRange, int, std::span<std::int64_t>);                 \
  template std::int64_t scatter_edges(Ends<Id>, Ends<Id>, bool, std::int64_t, const EdgeBuffers<std::int32_t>&);  \
  template std::int64_t scatter_edges(Ends<Id>, Ends<Id>, bool, std::int64_t, const EdgeBuffers<std::int64_t>&);  \
  template std::int64_t sort_bucket(std::span<const Edge<Id>>, std::int64_t, bool, bool, std::span<std::int64_t>, \
                                    std::span<Id>);                                                               \
  template void sort_bucket_with_order(std::span<const Edge<Id>>, std::span<const std::int64_t>, std::int64_t,    \
                                       std::span<std::int64_t>, std::span<Id>, std::span<std::int64_t>);
DISKGNN_INSTANTIATE(std::int32_t)
DISKGNN_INSTANTIATE(std::int64_t)

}  // namespace diskgnn
