// Means of in-neighbours' rows: one hop of a panel of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Lists of consecutive destinations. The first one may be the rest of a list, the last one may go on.
template <typename Id>
struct EdgeLists {
  std::span<const std::int64_t> offsets;  // [rows + 1], from 0 on
  std::span<const Id> sources;
  std::span<const float> weights;  // empty: all 1
  bool continues, goes_on;
  bool skips_own;  // the last edge of a list is the node itself, and does not count
};

// target[i] = the weighted mean of the rows of its sources, or 0 where the weights add up to 0.
//
// One thread sums a destination, in the order of its list, in float64; weights and rows are float32, so that a product
// is exact, and the mean is rounded once. So the bits depend neither on threads nor on how lists are cut, nor on
// whether a processor fuses additions and multiplications. `carry` [width + 1] has the sums of a list that goes on,
// then its weight. Rows are `width` floats; `target` has one for each list, but one that goes on is not written yet.
// Throws std::invalid_argument where a source is no row.
template <typename Id>
void mean_rows(const EdgeLists<Id>& lists, std::span<double> carry, std::span<const float> rows, std::size_t width,
               std::span<float> target, unsigned threads);

// Multiplies each row, of `width` floats, by its scale.
void scale_rows(std::span<float> rows, std::size_t width, std::span<const float> scales);

// Adds to sums[i] the weights of edges into node i, in their order: those of edges from number `begin` on.
void add_weights(std::span<const std::int64_t> offsets, std::int64_t begin, std::span<const float> weights,
                 std::span<double> sums);

}  // namespace diskgnn
