// Neighbour sampling without replacement (GraphSAGE, Hamilton et al., NeurIPS 2017) in graphs of one or more types of
// nodes and edges, one minibatch at a time.
//
// Layer by layer, from the seeds outwards. In a layer the edge types have their turns in order. In its turn, an edge
// type draws for all nodes of its destination type that were known before the layer. New nodes are appended to the list
// of its source type.
//
// Draws are independent, or coordinated (after LABOR, Balin and Catalyurek, NeurIPS 2023): then all nodes of a
// minibatch agree on whom to look at. Lists of in-neighbours are in the order of a hash (graph/neighbor_order.h), and
// a node draws the slice of its list that begins at the first hash from `slice_start` on; the end of the list goes on
// at its beginning. sampling/edge_choice.h has the draws from lists of which not every edge may be drawn.
#pragma once

#include "sampling/draw_request.h"
#include "sampling/relation.h"
#include "sampling/sampled_minibatch.h"

namespace diskgnn {

// Samples what `request` asks for. `Id` is std::int64_t if the indices of an edge type are. Throws
// std::invalid_argument when a seed is out of range or repeated, or when a block would need more than 2^31 - 1 edges;
// std::out_of_range when the topology leads outside of itself (a damaged file).
template <typename Id, bool kTrees>
SampledMinibatch<Id> sample_minibatch(const TypedTopology& topology, const DrawRequest& request);

}  // namespace diskgnn
