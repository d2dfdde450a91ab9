// Rows of x from rows of codes: dequantised in one pass, by loops that a compiler turns into vector instructions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Codes per column of `bits` 8 (signed, a byte each) or 4 (unsigned, two a byte, the low half first; an odd width
// leaves the last high half unused). out[i, c] = (code[i, c] - zero_point[c]) * scale[c], by `threads` threads.
// `codes` and `out` have the same number of rows of `scale.size()` columns: the caller checks.
void dequantise_rows(std::span<const std::uint8_t> codes, unsigned bits, std::span<const float> scale,
                     std::span<const float> zero_point, std::span<float> out, unsigned threads);

// Bytes of one row of codes.
inline std::size_t code_row_bytes(unsigned bits, std::size_t width) { return bits == 4 ? (width + 1) / 2 : width; }

}  // namespace diskgnn
