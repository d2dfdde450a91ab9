#include "graph/graph_generator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "draws.h"

namespace diskgnn {
namespace {

enum Purpose : std::uint64_t { kEdges, kAffinity, kFeatures, kCentroids, kIds, kShuffle };

constexpr std::uint64_t draw(std::uint64_t key, std::uint64_t counter) {
  return mix64(key + counter * 0x9e3779b97f4a7c15);
}

constexpr double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// Nearly normal (Irwin-Hall: the sum of four uniform 16-bit numbers), mean 0 and variance 1.
inline float noise(std::uint64_t bits) {
  constexpr std::uint64_t kLanes = 0x0000ffff0000ffff;
  constexpr std::int32_t kMean = 4 * 0xffff / 2;
  constexpr float kPerDeviation = 0x1.bb67aep-16F;  // 1 / sqrt(4 * (2^32 - 1) / 12)
  const std::uint64_t pairs = (bits & kLanes) + ((bits >> 16) & kLanes);
  const auto sum = static_cast<std::int32_t>((pairs & 0xffffffff) + (pairs >> 32));
  return static_cast<float>(sum - kMean) * kPerDeviation;
}

// The narrowing conversions round to nearest, ties to even. Features are finite and small: no overflow, no NaN.
inline std::uint16_t to_float16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits >= 0x38800000) return static_cast<std::uint16_t>(sign | ((bits - 0x37fff001 + ((bits >> 13) & 1)) >> 13));
  // Subnormal: adding 0.5 puts the last place of a half where float has its own, so the addition rounds.
  const float aligned = std::bit_cast<float>(bits) + 0.5F;
  return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000));
}

inline std::uint16_t to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline std::int8_t to_int8(float value) {
  return static_cast<std::int8_t>(std::nearbyint(std::clamp(value * 32.0F, -127.0F, 127.0F)));
}

template <typename T, typename Convert>
void convert_row(const std::vector<float>& row, std::byte* out, Convert convert) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const T value = convert(row[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

Permutation::Permutation(std::uint64_t size, std::uint64_t key)
    : size_(size), mask_(std::bit_ceil(size) - 1), shift_((std::bit_width(mask_) + 1) / 2) {
  for (int round = 0; round < kRounds; ++round) {
    const auto counter = static_cast<std::uint64_t>(round) * 2;
    factors_[round] = draw(key, counter) | 1;
    offsets_[round] = draw(key, counter + 1);
    std::uint64_t inverse = factors_[round];  // right in 3 bits; each step of Newton's method doubles them
    for (int step = 0; step < 5; ++step) inverse *= 2 - factors_[round] * inverse;
    inverses_[round] = inverse;
  }
}

std::uint64_t Permutation::forward(std::uint64_t x) const {
  do {
    for (int round = 0; round < kRounds; ++round) {
      x = (x * factors_[round] + offsets_[round]) & mask_;
      x ^= x >> shift_;  // its own inverse, for the shift is at least half the width
    }
  } while (x >= size_);
  return x;
}

std::uint64_t Permutation::backward(std::uint64_t y) const {
  do {
    for (int round = kRounds - 1; round >= 0; --round) {
      y ^= y >> shift_;
      y = ((y - offsets_[round]) * inverses_[round]) & mask_;
    }
  } while (y >= size_);
  return y;
}

GraphGenerator::GraphGenerator(const GraphModel& model)
    : model_(model),
      small_class_size_(model.num_nodes / model.num_classes),
      num_large_classes_(model.num_nodes % model.num_classes),
      edge_key_(combine(model.seed, kEdges)),
      affinity_key_(combine(model.seed, kAffinity)),
      feature_key_(combine(model.seed, kFeatures)),
      ids_(model.num_nodes, combine(model.seed, kIds)),
      shuffle_(model.num_nodes, combine(model.seed, kShuffle)),
      centroids_(model.num_classes * model.num_features) {
  for (const int large : {0, 1}) {
    const std::uint64_t size = small_class_size_ + static_cast<std::uint64_t>(large);
    rank_scale_[large] = std::sqrt(std::sqrt(static_cast<double>(size) + 1.0)) - 1.0;
  }
  const auto scale = static_cast<float>(model.feature_signal / std::sqrt(static_cast<double>(model.num_features)));
  const std::uint64_t key = combine(model.seed, kCentroids);
  for (std::size_t i = 0; i < centroids_.size(); ++i) centroids_[i] = scale * noise(draw(key, i));
}

std::uint64_t GraphGenerator::class_start(std::uint64_t label) const {
  return label * small_class_size_ + std::min(label, num_large_classes_);
}

std::uint64_t GraphGenerator::class_size(std::uint64_t label) const {
  return small_class_size_ + (label < num_large_classes_ ? 1 : 0);
}

std::uint64_t GraphGenerator::class_of_position(std::uint64_t position) const {
  const std::uint64_t in_large = num_large_classes_ * (small_class_size_ + 1);
  if (position < in_large) return position / (small_class_size_ + 1);
  return num_large_classes_ + (position - in_large) / small_class_size_;
}

// Inverse of the distribution function of the density (r + 1)^-0.75. Its exponent makes the inverse a fourth power:
// multiplications, which IEEE 754 rounds the same on every machine, unlike pow.
std::uint64_t GraphGenerator::rank(std::uint64_t bits, std::uint64_t label) const {
  const std::uint64_t size = class_size(label);
  const double scaled = unit(bits) * rank_scale_[size - small_class_size_];
  const double x = scaled + 1.0;
  const double power = (x * x) * (x * x);
  return std::min(static_cast<std::uint64_t>(power - 1.0), size - 1);
}

template <typename Node>
void GraphGenerator::edges(std::uint64_t first, std::span<Node> src, std::span<Node> dst) const {
  const double low = 0.2 * model_.homophily;
  for (std::size_t i = 0; i < dst.size(); ++i) {
    const std::uint64_t counter = (first + i) * 4;
    const std::uint64_t class_bits = draw(edge_key_, counter);
    const std::uint64_t dst_class = below(class_bits, model_.num_classes);
    const std::uint64_t dst_rank = rank(draw(edge_key_, counter + 1), dst_class);
    const std::uint64_t node = ids_.forward(class_start(dst_class) + dst_rank);
    const bool is_typical = unit(draw(affinity_key_, node)) < model_.homophily;
    const double affinity = is_typical ? low + 0.8 : low;

    std::uint64_t src_class = dst_class;
    const std::uint64_t other_bits = draw(edge_key_, counter + 2);
    if (model_.num_classes > 1 && unit(other_bits) >= affinity) {
      // The bits that dst_class has not used up choose among the others, without dst_class.
      src_class = below(mix64(class_bits), model_.num_classes - 1);
      src_class += src_class >= dst_class ? 1 : 0;
    }
    std::uint64_t src_rank = rank(draw(edge_key_, counter + 3), src_class);
    if (src_class == dst_class && src_rank == dst_rank) src_rank = (src_rank + 1) % class_size(src_class);
    src[i] = static_cast<Node>(ids_.forward(class_start(src_class) + src_rank));
    dst[i] = static_cast<Node>(node);
  }
}

template void GraphGenerator::edges(std::uint64_t, std::span<std::int32_t>, std::span<std::int32_t>) const;
template void GraphGenerator::edges(std::uint64_t, std::span<std::int64_t>, std::span<std::int64_t>) const;

template <typename Node>
void GraphGenerator::edges_from(const GraphGenerator& sources, std::uint64_t key, double homophily, std::uint64_t first,
                                std::span<Node> src, std::span<Node> dst) const {
  for (std::size_t i = 0; i < dst.size(); ++i) {
    const std::uint64_t counter = (first + i) * 4;
    const std::uint64_t class_bits = draw(key, counter);
    const std::uint64_t dst_class = below(class_bits, model_.num_classes);
    const std::uint64_t dst_rank = rank(draw(key, counter + 1), dst_class);
    std::uint64_t src_class = dst_class;
    if (model_.num_classes > 1 && unit(draw(key, counter + 2)) >= homophily) {
      src_class = below(mix64(class_bits), model_.num_classes - 1);
      src_class += src_class >= dst_class ? 1 : 0;
    }
    std::uint64_t src_rank = sources.rank(draw(key, counter + 3), src_class);
    if (&sources == this && src_class == dst_class && src_rank == dst_rank) {
      src_rank = (src_rank + 1) % class_size(src_class);
    }
    src[i] = static_cast<Node>(sources.ids_.forward(sources.class_start(src_class) + src_rank));
    dst[i] = static_cast<Node>(ids_.forward(class_start(dst_class) + dst_rank));
  }
}

template void GraphGenerator::edges_from(const GraphGenerator&, std::uint64_t, double, std::uint64_t,
                                         std::span<std::int32_t>, std::span<std::int32_t>) const;
template void GraphGenerator::edges_from(const GraphGenerator&, std::uint64_t, double, std::uint64_t,
                                         std::span<std::int64_t>, std::span<std::int64_t>) const;

void GraphGenerator::labels(std::uint64_t first, std::span<std::int64_t> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<std::int64_t>(class_of_position(ids_.backward(first + i)));
  }
}

void GraphGenerator::shuffled_nodes(std::uint64_t first, std::span<std::int64_t> out) const {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(shuffle_.forward(first + i));
}

void GraphGenerator::feature_row(std::uint64_t node, float* out) const {
  const std::uint64_t width = model_.num_features;
  const float* centroid = centroids_.data() + class_of_position(ids_.backward(node)) * width;
  for (std::uint64_t i = 0; i < width; ++i) {
    const float value = noise(draw(feature_key_, node * width + i));
    out[i] = centroid[i] + value;
  }
}

std::size_t GraphGenerator::row_bytes(FeatureType type) const {
  return model_.num_features * (type == FeatureType::kFloat32 ? 4 : type == FeatureType::kInt8 ? 1 : 2);
}

void GraphGenerator::features(std::uint64_t first, FeatureType type, std::span<std::byte> out) const {
  std::vector<float> row(model_.num_features);
  const std::size_t bytes = row_bytes(type);
  for (std::byte* place = out.data(); place != out.data() + out.size(); place += bytes, ++first) {
    feature_row(first, row.data());
    switch (type) {
      case FeatureType::kFloat32:
        std::memcpy(place, row.data(), bytes);
        break;
      case FeatureType::kFloat16:
        convert_row<std::uint16_t>(row, place, to_float16);
        break;
      case FeatureType::kBFloat16:
        convert_row<std::uint16_t>(row, place, to_bfloat16);
        break;
      case FeatureType::kInt8:
        convert_row<std::int8_t>(row, place, to_int8);
        break;
    }
  }
}

}  // namespace diskgnn
