// Numbers that were read from somewhere, before they are used as places in memory.
#pragma once

#include <cstddef>
#include <span>

namespace diskgnn {

// Throws std::out_of_range, with `what` they are, unless all of int32 or int64 `numbers` are in [first, first + count).
template <typename Number>
void require_in_range(std::span<const Number> numbers, Number first, std::size_t count, const char* what);

}  // namespace diskgnn
