// A labelled graph whose every edge, label and feature row is a pure function of (seed, index): a degree-corrected
// planted partition (Karrer and Newman, Phys. Rev. E 83, 2011) with power-law degrees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace diskgnn {

// A keyed bijection on [0, size), for any size: one on the next power of two, walked until it lands inside (Black
// and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Fewer than two steps are expected.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);

  std::uint64_t forward(std::uint64_t x) const;
  std::uint64_t backward(std::uint64_t y) const;

 private:
  static constexpr int kRounds = 3;

  std::uint64_t size_;
  std::uint64_t mask_;
  int shift_;
  std::uint64_t factors_[kRounds];
  std::uint64_t inverses_[kRounds];
  std::uint64_t offsets_[kRounds];
};

struct GraphModel {
  std::uint64_t num_nodes;
  std::uint64_t num_classes;  // classes are of equal size; num_nodes >= 2 * num_classes
  double homophily;           // expected share of edges between nodes of one class
  std::uint64_t num_features;
  double feature_signal;  // length of a class centroid, in standard deviations of the noise
  std::uint64_t seed;
};

enum class FeatureType { kFloat32, kFloat16, kBFloat16, kInt8 };

// The methods fill `out` with consecutive items from number `first` on. Safe to call from several threads at once.
//
// A node is known by its position, in which classes are contiguous and each class's nodes are ordered from the
// most popular on; ids are positions scrambled by a permutation. Both ends of an edge are drawn within a class
// with probability proportional to (rank + 1)^-0.75, so in- and out-degrees have tails of exponent 1 + 1/0.75.
//
// Homophily differs between nodes, as in real graphs: with h the graph's, the in-edges of a share h of the nodes
// come from their own class with probability 0.2 h + 0.8, those of the others with probability 0.2 h. So no model
// can be right everywhere, and the accuracy that can be reached stays well below 1.
class GraphGenerator {
 public:
  explicit GraphGenerator(const GraphModel& model);

  std::size_t row_bytes(FeatureType type) const;
  std::uint64_t num_classes() const { return model_.num_classes; }

  // Never joins a node to itself. May repeat a pair.
  template <typename Node>
  void edges(std::uint64_t first, std::span<Node> src, std::span<Node> dst) const;

  // Edges from nodes of `sources` to nodes of this graph, both of as many classes, drawn by `key`: a share `homophily`
  // leads from a class to the same one. Never joins a node to itself if they are one graph. May repeat a pair.
  template <typename Node>
  void edges_from(const GraphGenerator& sources, std::uint64_t key, double homophily, std::uint64_t first,
                  std::span<Node> src, std::span<Node> dst) const;

  void labels(std::uint64_t first, std::span<std::int64_t> out) const;

  // All nodes, once each, in an order that has nothing to do with class or popularity: splits are cut from it.
  void shuffled_nodes(std::uint64_t first, std::span<std::int64_t> out) const;

  // Whole rows: the class's centroid plus noise of variance 1, as float32, then rounded to `type` (int8: times
  // 32).
  void features(std::uint64_t first, FeatureType type, std::span<std::byte> out) const;

 private:
  std::uint64_t class_of_position(std::uint64_t position) const;
  std::uint64_t class_start(std::uint64_t label) const;
  std::uint64_t class_size(std::uint64_t label) const;
  std::uint64_t rank(std::uint64_t bits, std::uint64_t label) const;
  void feature_row(std::uint64_t node, float* out) const;

  GraphModel model_;
  std::uint64_t small_class_size_;
  std::uint64_t num_large_classes_;  // the first ones, one node larger
  double rank_scale_[2];             // of small and large classes
  std::uint64_t edge_key_;
  std::uint64_t affinity_key_;
  std::uint64_t feature_key_;
  Permutation ids_;
  Permutation shuffle_;
  std::vector<float> centroids_;  // [num_classes, num_features]
};

}  // namespace diskgnn
