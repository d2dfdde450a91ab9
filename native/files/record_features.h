// x from records: rows that keep the columns of a table. What each column is to become is said once, for all rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// What the numbers of a column of x are made of.
enum class FeatureKind : std::int64_t {
  kNothing,    // 0
  kInteger,    // an int64
  kTimestamp,  // an int64 of microseconds, rounded down to seconds
  kFloat,      // a float
  kCode,       // 1 where an int32 is the number of the feature, from `first` on, else 0
  kFloats,     // floats
  kBytes,      // signed bytes, divided by `divisor`
  kQuantised,  // signed bytes; `first` is that of the scales
};

// One column of x, as `RecordView` lists them: int64 numbers, in this order.
struct FeatureColumn {
  FeatureKind kind;
  std::int64_t offset;     // in the record, bytes
  std::int64_t width;      // features
  std::int64_t null_bit;   // in the record; -1: never null
  std::int64_t first;      // code, or scale
  std::int64_t is_scaled;  // of numbers: by mean and deviation, and 0 where they are null or no number; else NaN there
};

// The numbers beside: (value - mean) / deviation. Of bytes, the deviation is the divisor.
struct FeatureScale {
  double mean, deviation;
};

struct RecordFeatures {
  std::size_t row_bytes;
  std::span<const FeatureColumn> columns;
  std::span<const FeatureScale> scales;
  std::span<const float> code_scale, code_zero_point;  // of quantised codes: (code - zero point) * scale

  // Features of a row.
  std::size_t width() const;

  // Throws std::invalid_argument unless all columns lie in a record and among the scales.
  void require_sound() const;

  // Fills `out`, rows of `width()`, from record places[i], or from record i where `is_spread` is false; by `threads`
  // threads at most. Throws std::out_of_range where a place is none.
  void fill(std::span<const std::uint8_t> records, std::span<const std::int32_t> places, bool is_spread,
            std::span<float> out, unsigned threads) const;
};

}  // namespace diskgnn
