// Edges to in-neighbour lists (CSC): the three kernels of an external bucket sort by destination.
//
// Nodes are cut into bins of 2^shift consecutive ids and bins into buckets, so that nothing here is node-sized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// One edge on its way to its bucket. Index is int32 below 2^31 nodes, otherwise int64.
template <class Index>
struct Edge {
  Index src, dst;
};

// One end of some edges: numbers that may have others between them, as the columns of an array of pairs.
template <class Id>
struct Ends {
  const Id* first;
  std::ptrdiff_t stride;
  std::size_t count;

  std::size_t size() const { return count; }
  Id operator[](std::size_t i) const { return first[static_cast<std::ptrdiff_t>(i) * stride]; }
};

// Edges lead from nodes in [0, num_sources) to nodes in [0, num_nodes).
struct EdgeRange {
  std::int64_t num_sources, num_nodes;
};

// Adds 1 to bin_edges[dst >> shift] for every edge. Returns how many edges come before the first one with an id
// outside its range; those have been counted, it and what follows have not.
template <class Id>
std::int64_t count_edges(Ends<Id> src, Ends<Id> dst, EdgeRange range, int shift, std::span<std::int64_t> bin_edges);

// Where the edges of each bucket are gathered: in buffer[cursors[b]..ends[b]).
template <class Index>
struct EdgeBuffers {
  EdgeRange range;
  int shift;
  std::span<const std::int32_t> bucket_of_bin;
  std::span<Edge<Index>> buffer;
  std::span<std::int64_t> cursors;
  std::span<const std::int64_t> ends;
};

// Appends edges, from number `first` on, to the buffers of their buckets; with `reverse` each is followed by its
// reverse, and number 2 i + 1 is the reverse of edge i. Stops at an edge whose buffer is full; returns its number (that
// after the last if none was). Throws std::out_of_range for an id outside its range.
template <class Id, class Index>
std::int64_t scatter_edges(Ends<Id> src, Ends<Id> dst, bool reverse, std::int64_t first,
                           const EdgeBuffers<Index>& buffers);

// Sorts the edges of a bucket by (dst, order_hash(src)) into `indices`, one column per node of [first_node, first_node
// + degrees.size()), and writes each column's length to `degrees`. `self_loops` adds (v, v) where it is missing;
// `indices` then needs room for edges.size() + degrees.size(), otherwise for edges.size().
// Returns the number of indices written. Throws std::out_of_range for a destination of another bucket.
template <class Index>
std::int64_t sort_bucket(std::span<const Edge<Index>> edges, std::int64_t first_node, bool self_loops,
                         bool drop_duplicates, std::span<std::int64_t> degrees, std::span<Index> indices);

// The same for edges that carry data, all of which stay: writes edges.size() indices, and to `order` the number that
// each of them has in `edges`. Equal edges keep their order. With `times` of the edges, sorts by (dst, time,
// order_hash(src)).
template <class Index>
void sort_bucket_with_order(std::span<const Edge<Index>> edges, std::span<const std::int64_t> times,
                            std::int64_t first_node, std::span<std::int64_t> degrees, std::span<Index> indices,
                            std::span<std::int64_t> order);

}  // namespace diskgnn
