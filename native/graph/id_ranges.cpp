#include "graph/id_ranges.h"

#include <algorithm>
#include <ranges>

namespace diskgnn {

void find_ranges(const Strings& ids, const Strings& bounds, std::span<std::uint16_t> ranges) {
  const auto numbers = std::views::iota(std::size_t{0}, bounds.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // The order of string_view is that of unsigned bytes.
    const auto above = std::ranges::upper_bound(numbers, ids[i], {}, [&](std::size_t b) { return bounds[b]; });
    ranges[i] = static_cast<std::uint16_t>(above - numbers.begin());
  }
}

}  // namespace diskgnn
