#include "files/record_features.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "files/cpu_features.h"
#include "files/parallel.h"

namespace diskgnn {
namespace {

constexpr std::size_t kTakenValues = std::size_t{1} << 16;   // by a thread at a time
constexpr std::size_t kThreadValues = std::size_t{1} << 19;  // that are worth a thread
constexpr std::int64_t kPerSecond = 1'000'000;

template <typename Number>
Number number_at(const std::uint8_t* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof number);
  return number;
}

std::int64_t seconds(std::int64_t microseconds) {
  return microseconds / kPerSecond - (microseconds % kPerSecond < 0 ? 1 : 0);
}

float scaled(double number, bool is_null, bool is_scaled, FeatureScale by) {
  if (!is_scaled) return is_null ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(number);
  const double found = (number - by.mean) / by.deviation;
  return is_null || !std::isfinite(found) ? 0.0F : static_cast<float>(found);
}

// The whole of x may be of these two: they are for the compiler to turn into vector instructions.
inline __attribute__((always_inline)) void divide(const std::int8_t* __restrict codes, std::size_t width, float divisor,
                                                  float* __restrict out) {
  for (std::size_t c = 0; c < width; ++c) out[c] = static_cast<float>(codes[c]) / divisor;
}

inline __attribute__((always_inline)) void dequantise(const std::int8_t* __restrict codes, std::size_t width,
                                                      const float* __restrict scale, const float* __restrict zero_point,
                                                      float* __restrict out) {
  for (std::size_t c = 0; c < width; ++c) out[c] = (static_cast<float>(codes[c]) - zero_point[c]) * scale[c];
}

struct Loops {
  void (*divide)(const std::int8_t*, std::size_t, float, float*);
  void (*dequantise)(const std::int8_t*, std::size_t, const float*, const float*, float*);
};

void divide_any(const std::int8_t* codes, std::size_t width, float divisor, float* out) {
  divide(codes, width, divisor, out);
}

void dequantise_any(const std::int8_t* codes, std::size_t width, const float* scale, const float* zero_point,
                    float* out) {
  dequantise(codes, width, scale, zero_point, out);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void divide_avx2(const std::int8_t* codes, std::size_t width, float divisor,
                                                 float* out) {
  divide(codes, width, divisor, out);
}

__attribute__((target("avx2"))) void dequantise_avx2(const std::int8_t* codes, std::size_t width, const float* scale,
                                                     const float* zero_point, float* out) {
  dequantise(codes, width, scale, zero_point, out);
}
#endif

Loops loops() {
#if defined(__x86_64__)
  static const bool with_avx2 = has_avx2();
  if (with_avx2) return {divide_avx2, dequantise_avx2};
#endif
  return {divide_any, dequantise_any};
}

std::size_t value_bytes(FeatureKind kind) {
  switch (kind) {
    case FeatureKind::kInteger:
    case FeatureKind::kTimestamp:
      return sizeof(std::int64_t);
    case FeatureKind::kFloat:
    case FeatureKind::kCode:
    case FeatureKind::kFloats:
      return sizeof(float);
    case FeatureKind::kBytes:
    case FeatureKind::kQuantised:
      return 1;
    case FeatureKind::kNothing:
      return 0;
  }
  throw std::invalid_argument("a column of no kind");
}

}  // namespace

std::size_t RecordFeatures::width() const {
  std::size_t found = 0;
  for (const FeatureColumn& column : columns) found += static_cast<std::size_t>(column.width);
  return found;
}

void RecordFeatures::require_sound() const {
  const auto most = static_cast<std::int64_t>(row_bytes), num_codes = static_cast<std::int64_t>(code_scale.size());
  if (columns.size() != scales.size() || code_scale.size() != code_zero_point.size()) {
    throw std::invalid_argument("columns and what scales them differ in number");
  }
  for (const FeatureColumn& column : columns) {
    const auto each = static_cast<std::int64_t>(value_bytes(column.kind));
    const bool is_wide = each == 1 || column.kind == FeatureKind::kFloats;
    const bool is_one = each == sizeof(std::int64_t) || column.kind == FeatureKind::kFloat;
    if (column.width < 0 || column.width > (std::int64_t{1} << 31) || (is_one && column.width != 1) ||
        column.offset < 0 || column.offset > most || (is_wide ? column.width : 1) * each > most - column.offset ||
        column.null_bit < -1 || column.null_bit >= 8 * most) {
      throw std::invalid_argument("a column does not lie in its record");
    }
    if (column.kind == FeatureKind::kQuantised &&
        (column.first < 0 || column.first > num_codes || column.width > num_codes - column.first)) {
      throw std::invalid_argument("a column has no scales");
    }
  }
}

void RecordFeatures::fill(std::span<const std::uint8_t> records, std::span<const std::int32_t> places, bool is_spread,
                          std::span<float> out, unsigned threads) const {
  const std::size_t row_width = width(), num_records = records.size() / row_bytes;
  if (row_width == 0 || out.empty()) return;
  const std::size_t num_rows = out.size() / row_width;
  std::uint32_t largest = is_spread ? 0 : static_cast<std::uint32_t>(num_rows - 1);
  for (const std::int32_t place : places) largest = std::max(largest, static_cast<std::uint32_t>(place));
  if (largest >= num_records) throw std::out_of_range("a place that has no record");

  const Loops run = loops();
  const auto fill_row = [&](const std::uint8_t* record, float* to) {
    for (std::size_t k = 0; k < columns.size(); ++k) {
      const FeatureColumn& column = columns[k];
      const std::uint8_t* const from = record + column.offset;
      const auto* const codes = reinterpret_cast<const std::int8_t*>(from);
      const auto column_width = static_cast<std::size_t>(column.width);
      const bool is_null = column.null_bit >= 0 && (record[column.null_bit / 8] >> (column.null_bit % 8) & 1) != 0;
      switch (column.kind) {
        case FeatureKind::kNothing:
          std::fill_n(to, column_width, 0.0F);
          break;
        case FeatureKind::kInteger:
          *to = scaled(static_cast<double>(number_at<std::int64_t>(from)), is_null, column.is_scaled != 0, scales[k]);
          break;
        case FeatureKind::kTimestamp:
          *to = scaled(static_cast<double>(seconds(number_at<std::int64_t>(from))), is_null, column.is_scaled != 0,
                       scales[k]);
          break;
        case FeatureKind::kFloat:
          *to = scaled(static_cast<double>(number_at<float>(from)), is_null, column.is_scaled != 0, scales[k]);
          break;
        case FeatureKind::kCode: {
          const std::int64_t place = number_at<std::int32_t>(from) - column.first;
          for (std::size_t c = 0; c < column_width; ++c) to[c] = static_cast<std::int64_t>(c) == place ? 1.0F : 0.0F;
          break;
        }
        case FeatureKind::kFloats:
          std::memcpy(to, from, column_width * sizeof(float));
          break;
        case FeatureKind::kBytes:
          run.divide(codes, column_width, static_cast<float>(scales[k].deviation), to);
          break;
        case FeatureKind::kQuantised:
          run.dequantise(codes, column_width, code_scale.data() + column.first, code_zero_point.data() + column.first,
                         to);
          break;
      }
      to += column_width;
    }
  };
  const std::size_t step = std::max<std::size_t>(1, kTakenValues / row_width);
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    for (std::size_t first; (first = taken.fetch_add(step)) < num_rows;) {
      for (std::size_t i = first; i < std::min(first + step, num_rows); ++i) {
        const std::size_t record = is_spread ? static_cast<std::size_t>(places[i]) : i;
        fill_row(records.data() + record * row_bytes, out.data() + i * row_width);
      }
    }
  };
  run_on_threads(static_cast<unsigned>(std::clamp<std::size_t>(out.size() / kThreadValues, 1, threads)), work);
}

}  // namespace diskgnn
