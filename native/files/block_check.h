// Whether a block that came from disk is one: what models compute with it never looks outside of its arrays.
#pragma once

#include <cstdint>
#include <span>

namespace diskgnn {

// What is wrong with the edges of a block of `num_src` sources, grouped by destination; nullptr if nothing is.
const char* block_fault(std::span<const std::int32_t> indptr, std::span<const std::int32_t> indices,
                        std::int64_t num_src);

}  // namespace diskgnn
