// Independent draws of a node's in-edges.
#pragma once

#include <cstdint>
#include <vector>

namespace diskgnn {

// Which of a node's `degree` in-edges are drawn independently: appends min(fanout, degree) distinct positions in
// [0, degree) to `positions`; fanout -1 takes all. A pure function of its arguments: the in-memory and the sweeping
// sampler share it.
void draw_positions(std::uint64_t state, std::int64_t degree, int fanout, std::vector<std::int64_t>& positions);

}  // namespace diskgnn
