// `block_fault` says of the arrays of a block what a plain loop over them says.
#include <optional>
#include <vector>

#include "files/block_check.h"
#include "fuzz/entry.h"

namespace diskgnn {
namespace {

bool is_sound(const std::vector<std::int32_t>& indptr, const std::vector<std::int32_t>& indices, std::int64_t num_src) {
  if (indptr.empty() || indptr[0] != 0 || indptr.back() != static_cast<std::int64_t>(indices.size())) return false;
  for (std::size_t i = 0; i + 1 < indptr.size(); ++i) {
    if (indptr[i] > indptr[i + 1]) return false;
  }
  for (const std::int32_t index : indices) {
    if (index < 0 || index >= num_src) return false;
  }
  return true;
}

}  // namespace

// How many sources and destinations there are, then indptr and indices as they lie in a header.
void execute(Input& input) {
  const auto num_src = input.take<std::int32_t>();
  std::vector<std::int32_t> indptr(input.take<std::uint8_t>()), indices(input.take<std::uint8_t>());
  for (std::vector<std::int32_t>* array : {&indptr, &indices}) {
    for (std::int32_t& number : *array) number = input.take<std::int32_t>();
  }
  must((block_fault(indptr, indices, num_src) == nullptr) == is_sound(indptr, indices, num_src));
}

}  // namespace diskgnn
