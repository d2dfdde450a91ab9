#include "files/row_widening.h"

#include <algorithm>
#include <atomic>

#include "files/parallel.h"

namespace diskgnn {
namespace {

constexpr std::size_t kTakenValues = std::size_t{1} << 16;  // by a thread at a time

void widen_bytes(const std::uint8_t* __restrict codes, std::size_t width, const float* __restrict scale,
                 const float* __restrict zero_point, float* __restrict out) {
  for (std::size_t c = 0; c < width; ++c) {
    const auto code = static_cast<float>(static_cast<std::int8_t>(codes[c]));
    out[c] = (code - zero_point[c]) * scale[c];
  }
}

void widen_nibbles(const std::uint8_t* __restrict codes, std::size_t width, const float* __restrict scale,
                   const float* __restrict zero_point, float* __restrict out) {
  for (std::size_t b = 0; b < width / 2; ++b) {
    const auto low = static_cast<float>(codes[b] & 15), high = static_cast<float>(codes[b] >> 4);
    out[2 * b] = (low - zero_point[2 * b]) * scale[2 * b];
    out[2 * b + 1] = (high - zero_point[2 * b + 1]) * scale[2 * b + 1];
  }
  if (width % 2 == 1) {
    out[width - 1] = (static_cast<float>(codes[width / 2] & 15) - zero_point[width - 1]) * scale[width - 1];
  }
}

}  // namespace

void dequantise_rows(std::span<const std::uint8_t> codes, unsigned bits, std::span<const float> scale,
                     std::span<const float> zero_point, std::span<float> out, unsigned threads) {
  const std::size_t width = scale.size(), row_bytes = code_row_bytes(bits, width);
  const std::size_t num_rows = out.size() / width, step = std::max<std::size_t>(1, kTakenValues / width);
  const auto widen = bits == 4 ? widen_nibbles : widen_bytes;
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    for (std::size_t first; (first = taken.fetch_add(step)) < num_rows;) {
      const std::size_t last = std::min(first + step, num_rows);
      for (std::size_t i = first; i < last; ++i) {
        widen(codes.data() + i * row_bytes, width, scale.data(), zero_point.data(), out.data() + i * width);
      }
    }
  };
  run_on_threads(static_cast<unsigned>(std::clamp<std::size_t>(num_rows / step, 1, threads)), work);
}

}  // namespace diskgnn
