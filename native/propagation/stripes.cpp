#include "propagation/stripes.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace diskgnn {
namespace {

constexpr std::size_t kRowsAtATime = 64;  // whose lines stay in the first cache while all stripes of a line are cut

template <typename Value>
bool is_unusual(const std::byte* row, std::size_t row_bytes, std::uint32_t exponent_bits) {
  const auto mask = static_cast<Value>(exponent_bits);
  bool found = false;  // without a branch: several values are compared at a time
  for (std::size_t byte = 0; byte < row_bytes; byte += sizeof(Value)) {
    Value value;
    std::memcpy(&value, row + byte, sizeof(value));
    found |= (value & mask) == mask;
  }
  return found;
}

bool is_unusual(const std::byte* row, const StripeFormat& format) {
  if (format.value_bytes == 2) return is_unusual<std::uint16_t>(row, format.row_bytes, format.exponent_bits);
  return is_unusual<std::uint32_t>(row, format.row_bytes, format.exponent_bits);
}

// kBytes from each row; 0: `bytes`.
template <std::size_t kBytes>
void copy_parts(std::span<const std::byte* const> rows, std::size_t first, std::size_t bytes, std::byte* to) {
  for (const std::byte* const row : rows) {
    std::memcpy(to, row + first, kBytes == 0 ? bytes : kBytes);
    to += kBytes == 0 ? bytes : kBytes;
  }
}

void copy_parts(std::span<const std::byte* const> rows, std::size_t first, std::size_t bytes, std::byte* to) {
  if (bytes == 16) return copy_parts<16>(rows, first, bytes, to);
  if (bytes == 8) return copy_parts<8>(rows, first, bytes, to);
  if (bytes == 4) return copy_parts<4>(rows, first, bytes, to);
  copy_parts<0>(rows, first, bytes, to);
}

template <std::size_t kCount>
void place(const float* values, std::size_t width, std::size_t num_rows, float* target, std::size_t target_width) {
  for (std::size_t i = 0; i < num_rows; ++i) {
    std::memcpy(target + i * target_width, values + i * width, kCount * sizeof(float));
  }
}

}  // namespace

UnusualRows cut_stripes(std::span<const std::byte> data, std::span<const bool> wanted, const StripeFormat& format,
                        std::span<std::byte> stripes) {
  const std::size_t num_wanted = stripes.size() / format.row_bytes;
  UnusualRows unusual{0, -1};
  std::array<const std::byte*, kRowsAtATime> rows;
  std::size_t held = 0, done = 0;
  const auto cut = [&] {
    for (std::size_t first = 0; first < format.row_bytes; first += format.stripe_bytes) {
      const std::size_t bytes = std::min(format.stripe_bytes, format.row_bytes - first);
      copy_parts({rows.data(), held}, first, bytes, stripes.data() + first * num_wanted + done * bytes);
    }
    done += held;
    held = 0;
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    const std::byte* const row = data.data() + i * format.row_bytes;
    if (format.exponent_bits != 0 && is_unusual(row, format)) {
      if (unusual.count++ == 0) unusual.first = static_cast<std::int64_t>(i);
    }
    rows[held++] = row;
    if (held == kRowsAtATime) cut();
  }
  cut();
  return unusual;
}

void place_columns(std::span<const float> values, std::size_t width, std::size_t first, std::size_t count,
                   std::span<float> target, std::size_t target_width, std::size_t target_first) {
  const std::size_t num_rows = values.size() / width;
  const float* const from = values.data() + first;
  float* const to = target.data() + target_first;
  if (count == 1) return place<1>(from, width, num_rows, to, target_width);
  if (count == 2) return place<2>(from, width, num_rows, to, target_width);
  if (count == 3) return place<3>(from, width, num_rows, to, target_width);
  if (count == 4) return place<4>(from, width, num_rows, to, target_width);
  for (std::size_t i = 0; i < num_rows; ++i) std::copy_n(from + i * width, count, to + i * target_width);
}

}  // namespace diskgnn
