// Features by columns: rows cut into stripes of a few columns, and put together again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

struct StripeFormat {
  std::size_t row_bytes;
  std::size_t stripe_bytes;     // of a row; the last stripe may have fewer
  std::size_t value_bytes;      // 1, 2 or 4
  std::uint32_t exponent_bits;  // of a value: all of them are set in NaN and infinite ones; 0: there are none
};

struct UnusualRows {
  std::int64_t count;
  std::int64_t first;  // -1: none
};

// Copies the wanted rows of `data` to `stripes`: all of the first one, then all of the second one, ... Returns which of
// them have values that are NaN or infinite. There is one `wanted` for each row; `stripes` has as many bytes as these
// rows.
UnusualRows cut_stripes(std::span<const std::byte> data, std::span<const bool> wanted, const StripeFormat& format,
                        std::span<std::byte> stripes);

// Columns [first, first + count) of rows of `width` become columns from `target_first` on of rows of `target_width`.
void place_columns(std::span<const float> values, std::size_t width, std::size_t first, std::size_t count,
                   std::span<float> target, std::size_t target_width, std::size_t target_first);

}  // namespace diskgnn
