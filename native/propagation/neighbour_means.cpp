#include "propagation/neighbour_means.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "files/cpu_features.h"
#include "files/parallel.h"

#define DISKGNN_INLINE inline __attribute__((always_inline))  // into functions for one kind of processors, too

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchedEdges = 64;
constexpr std::size_t kLineBytes = 64;
constexpr std::size_t kLanes = 4;            // columns of a vector
constexpr std::size_t kEdgesAtATime = 64;    // where registers do not hold the sums of all columns
constexpr std::size_t kPartsPerThread = 4;   // so that threads end together
constexpr std::size_t kPartEdges = 1 << 14;  // at least

// Lists [first, last), and the rows that their edges lead from.
template <typename Id>
struct Part {
  const EdgeLists<Id>& lists;
  const float* rows;
  std::size_t width, first, last;
  std::size_t end;  // of their edges
  const double* begun;
  double* carry;
  float* target;

  DISKGNN_INLINE const float* row(std::size_t edge) const {
    return rows + static_cast<std::size_t>(lists.sources[edge]) * width;
  }

  // All lines of a row, into the second cache: as many misses as the first one serves at a time would not do.
  DISKGNN_INLINE void prefetch(std::size_t edge) const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(row(edge));
    const std::size_t last_byte = width * sizeof(float) - 1;
    for (std::size_t i = 0; i < last_byte; i += kLineBytes) __builtin_prefetch(bytes + i, 0, 2);
    __builtin_prefetch(bytes + last_byte, 0, 2);
  }
};

// Columns are summed in vectors. The last one ends with the last column, so that nothing is read behind a row; it may
// share columns with the one before it, whose sums are the same.
struct Vectors {
  std::size_t width, lanes, count;

  explicit Vectors(std::size_t columns)
      : width(columns), lanes(std::min(kLanes, columns)), count((columns + lanes - 1) / lanes) {}

  DISKGNN_INLINE std::size_t column(std::size_t vector) const { return std::min(vector * lanes, width - lanes); }
};

// A run of edges of one list.
struct Edges {
  std::size_t begin, end;
  std::size_t prefetched_end;  // rows of edges before it are prefetched
  bool begins_list;            // no sums are there yet
};

// Adds the rows of edges to kCount vectors of sums, from number `first` on.
template <std::size_t kLanesEach, std::size_t kCount, bool kWeighted, typename Id>
DISKGNN_INLINE void add_vectors(const Part<Id>& part, const Vectors& vectors, const Edges& edges, std::size_t first,
                                double* all_sums) {
  double* const sums = all_sums + first * kLanesEach;
  std::size_t columns[kCount];
  for (std::size_t v = 0; v < kCount; ++v) columns[v] = vectors.column(first + v);
  double held[kCount][kLanesEach];
  for (std::size_t v = 0; v < kCount; ++v) {
    for (std::size_t j = 0; j < kLanesEach; ++j) held[v][j] = edges.begins_list ? 0 : sums[v * kLanesEach + j];
  }
  for (std::size_t e = edges.begin; e < edges.end; ++e) {
    if (e + kPrefetchedEdges < edges.prefetched_end) part.prefetch(e + kPrefetchedEdges);
    const float* const row = part.row(e);
    const double weight = kWeighted ? static_cast<double>(part.lists.weights[e]) : 1;
    for (std::size_t v = 0; v < kCount; ++v) {
      const float* const values = row + columns[v];
      for (std::size_t j = 0; j < kLanesEach; ++j) {
        const auto value = static_cast<double>(values[j]);
        held[v][j] += kWeighted ? weight * value : value;
      }
    }
  }
  for (std::size_t v = 0; v < kCount; ++v) {
    for (std::size_t j = 0; j < kLanesEach; ++j) sums[v * kLanesEach + j] = held[v][j];
  }
}

// `count` vectors, kMost or fewer.
template <std::size_t kLanesEach, std::size_t kMost, bool kWeighted, typename Id>
DISKGNN_INLINE void add_some(std::size_t count, const Part<Id>& part, const Vectors& vectors, const Edges& edges,
                             std::size_t first, double* sums) {
  if constexpr (kMost > 1) {
    if (count < kMost) return add_some<kLanesEach, kMost - 1, kWeighted>(count, part, vectors, edges, first, sums);
  }
  add_vectors<kLanesEach, kMost, kWeighted>(part, vectors, edges, first, sums);
}

// Registers hold the sums of kHeld vectors of kLanesEach columns.
template <std::size_t kLanesEach, std::size_t kHeld, bool kWeighted, typename Id>
DISKGNN_INLINE void sum_lists(const Part<Id>& part) {
  const EdgeLists<Id>& lists = part.lists;
  const std::size_t num_rows = lists.offsets.size() - 1, width = part.width;
  const Vectors vectors(width);
  std::vector<double> kept(vectors.count * kLanesEach);
  double* const sums = kept.data();
  for (std::size_t i = part.first; i < part.last; ++i) {
    const bool continues = i == 0 && lists.continues, goes_on = lists.goes_on && i + 1 == num_rows;
    const auto begin = static_cast<std::size_t>(lists.offsets[i]);
    const auto end = static_cast<std::size_t>(lists.offsets[i + 1]) - (lists.skips_own && !goes_on ? 1 : 0);
    double total = 0;
    if (continues || begin == end) {
      for (std::size_t v = 0; v < vectors.count; ++v) {
        const double* const begun = part.begun + vectors.column(v);
        for (std::size_t j = 0; j < kLanesEach; ++j) sums[v * kLanesEach + j] = continues ? begun[j] : 0;
      }
      total = continues ? part.begun[width] : 0;
    }

    const std::size_t step = vectors.count <= kHeld ? end - begin : kEdgesAtATime;
    Edges edges{begin, begin, part.end, !continues};
    for (; edges.begin < end; edges.begin = edges.end, edges.begins_list = false) {
      edges.end = std::min(edges.begin + step, end);
      edges.prefetched_end = part.end;
      for (std::size_t first = 0; first < vectors.count; first += kHeld) {
        add_some<kLanesEach, kHeld, kWeighted>(std::min(kHeld, vectors.count - first), part, vectors, edges, first,
                                               sums);
        edges.prefetched_end = 0;
      }
    }
    if constexpr (kWeighted) {
      for (std::size_t e = begin; e < end; ++e) total += static_cast<double>(lists.weights[e]);
    } else {
      total += static_cast<double>(end - begin);
    }

    if (goes_on) {
      for (std::size_t v = 0; v < vectors.count; ++v) {
        std::copy_n(sums + v * kLanesEach, kLanesEach, part.carry + vectors.column(v));
      }
      part.carry[width] = total;
      continue;
    }
    float* const target = part.target + i * width;
    for (std::size_t v = 0; v < vectors.count; ++v) {
      float* const means = target + vectors.column(v);
      for (std::size_t j = 0; j < kLanesEach; ++j) {
        means[j] = total > 0 ? static_cast<float>(sums[v * kLanesEach + j] / total) : 0;
      }
    }
  }
}

template <bool kWeighted, typename Id>
void sum_any(const Part<Id>& part) {
  sum_lists<kLanes, 4, kWeighted>(part);
}

#if defined(__x86_64__)
template <bool kWeighted, typename Id>
__attribute__((target("avx2"))) void sum_avx2(const Part<Id>& part) {
  sum_lists<kLanes, 8, kWeighted>(part);
}
#endif

template <bool kWeighted, typename Id>
auto summing(std::size_t width) {
  if (width == 1) return sum_lists<1, 1, kWeighted, Id>;
  if (width == 2) return sum_lists<2, 1, kWeighted, Id>;
  if (width == 3) return sum_lists<3, 1, kWeighted, Id>;
#if defined(__x86_64__)
  static const bool with_avx2 = has_avx2();
  if (with_avx2) return sum_avx2<kWeighted, Id>;
#endif
  return sum_any<kWeighted, Id>;
}

template <typename Id>
void require_rows(std::span<const Id> sources, std::size_t num_rows) {
  bool is_outside = false;  // of all, without a branch: several are compared at a time
  for (const Id source : sources) is_outside |= static_cast<std::make_unsigned_t<Id>>(source) >= num_rows;
  if (is_outside) throw std::invalid_argument("a source that is no row");
}

}  // namespace

template <typename Id>
void mean_rows(const EdgeLists<Id>& lists, std::span<double> carry, std::span<const float> rows, std::size_t width,
               std::span<float> target, unsigned threads) {
  const std::size_t num_rows = lists.offsets.size() - 1, num_edges = lists.sources.size();
  const std::vector<double> begun(carry.begin(), carry.end());
  const auto sum = lists.weights.empty() ? summing<false, Id>(width) : summing<true, Id>(width);
  const std::size_t num_parts =
      std::clamp<std::size_t>(num_edges / kPartEdges, 1, std::size_t{threads} * kPartsPerThread);
  const auto row_at = [&](std::size_t part) {  // where a part begins: parts have about as many edges
    if (part == num_parts) return num_rows;
    const auto edge = static_cast<std::int64_t>(num_edges / num_parts * part);
    const auto found = std::lower_bound(lists.offsets.begin(), lists.offsets.end() - 1, edge);
    return part == 0 ? std::size_t{0} : static_cast<std::size_t>(found - lists.offsets.begin());
  };
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    for (std::size_t number; (number = taken.fetch_add(1)) < num_parts;) {
      const std::size_t first = row_at(number), last = row_at(number + 1);
      const auto begin = static_cast<std::size_t>(lists.offsets[first]);
      const auto end = static_cast<std::size_t>(lists.offsets[last]);
      require_rows(lists.sources.subspan(begin, end - begin), rows.size() / width);
      sum(Part<Id>{lists, rows.data(), width, first, last, end, begun.data(), carry.data(), target.data()});
    }
  };
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(threads, num_parts)), work);
}

template void mean_rows(const EdgeLists<std::int32_t>&, std::span<double>, std::span<const float>, std::size_t,
                        std::span<float>, unsigned);
template void mean_rows(const EdgeLists<std::int64_t>&, std::span<double>, std::span<const float>, std::size_t,
                        std::span<float>, unsigned);

void add_weights(std::span<const std::int64_t> offsets, std::int64_t begin, std::span<const float> weights,
                 std::span<double> sums) {
  const auto end = begin + static_cast<std::int64_t>(weights.size());
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto first = std::clamp(offsets[i], begin, end), last = std::clamp(offsets[i + 1], first, end);
    for (std::int64_t e = first; e < last; ++e)
      sums[i] += static_cast<double>(weights[static_cast<std::size_t>(e - begin)]);
  }
}

}  // namespace diskgnn
