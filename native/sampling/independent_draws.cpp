#include "sampling/independent_draws.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>

#include "draws.h"

namespace diskgnn {
namespace {

// Up to this fanout, looking through what was drawn already is faster than a hash set.
constexpr int kLinearSearchFanout = 32;

}  // namespace

void draw_positions(std::uint64_t state, std::int64_t degree, int fanout, std::vector<std::int64_t>& positions) {
  if (fanout < 0 || degree <= fanout) {
    for (std::int64_t i = 0; i < degree; ++i) positions.push_back(i);
    return;
  }
  // Floyd's algorithm (Bentley and Floyd, CACM 1987): a uniform subset with `fanout` draws.
  const auto draw = [&](int i, const auto& is_drawn) {
    const std::int64_t last = degree - fanout + i;
    const std::uint64_t bits = mix64(state + static_cast<std::uint64_t>(i));
    const auto position = static_cast<std::int64_t>(below(bits, static_cast<std::uint64_t>(last) + 1));
    return is_drawn(position) ? last : position;
  };
  const std::size_t first = positions.size();
  positions.resize(first + static_cast<std::size_t>(fanout));
  std::int64_t* const drawn = positions.data() + first;
  if (fanout <= kLinearSearchFanout) {
    for (int i = 0; i < fanout; ++i) {
      drawn[i] = draw(i, [&](std::int64_t position) { return std::find(drawn, drawn + i, position) != drawn + i; });
    }
  } else {
    std::unordered_set<std::int64_t> seen;
    for (int i = 0; i < fanout; ++i) {
      drawn[i] = draw(i, [&](std::int64_t position) { return seen.contains(position); });
      seen.insert(drawn[i]);
    }
  }
}

}  // namespace diskgnn
