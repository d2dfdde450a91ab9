#include "files/block_check.h"

#include <algorithm>
#include <cstddef>

namespace diskgnn {

// Nothing branches within the loops, so that the compiler takes several numbers at once.
const char* block_fault(std::span<const std::int32_t> indptr, std::span<const std::int32_t> indices,
                        std::int64_t num_src) {
  if (indptr.empty() || indptr.front() != 0) return "its indptr does not start with 0";
  bool decreases = false;
  for (std::size_t i = 1; i < indptr.size(); ++i) decreases |= indptr[i] < indptr[i - 1];
  if (decreases) return "its indptr decreases";
  if (indptr.back() != static_cast<std::int64_t>(indices.size())) {
    return "its indptr does not end with its number of edges";
  }
  std::uint32_t largest = 0;  // a negative number is larger than all others
  for (const std::int32_t index : indices) largest = std::max(largest, static_cast<std::uint32_t>(index));
  if (!indices.empty() && static_cast<std::int64_t>(largest) >= num_src) return "an edge has a source that is none";
  return nullptr;
}

}  // namespace diskgnn
