#include "packing/in_range.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace diskgnn {

// Looks at all of them, so that the loop has no branch and becomes vector instructions: a number is outside if its
// distance from the first one, or to the last one, has a sign.
template <typename Number>
void require_in_range(std::span<const Number> numbers, Number first, std::size_t count, const char* what) {
  using Unsigned = std::make_unsigned_t<Number>;  // whose differences may wrap around
  constexpr auto kMost = static_cast<std::size_t>(std::numeric_limits<Number>::max());
  const auto begin = static_cast<Unsigned>(first);
  const auto last = static_cast<Unsigned>(begin + static_cast<Unsigned>(std::min(count, kMost)) - 1);
  Unsigned signs = 0;
  for (const Number number : numbers) {
    signs |= (static_cast<Unsigned>(number) - begin) | (last - static_cast<Unsigned>(number));
  }
  if (static_cast<Number>(signs) < 0) throw std::out_of_range(std::string(what) + " out of range");
}

template void require_in_range(std::span<const std::int32_t>, std::int32_t, std::size_t, const char*);
template void require_in_range(std::span<const std::int64_t>, std::int64_t, std::size_t, const char*);

}  // namespace diskgnn
