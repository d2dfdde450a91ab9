#include "propagation/neighbour_means.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
constexpr std::size_t kEdgesAtATime = 64;    // where registers do not hold the sums of all columns
constexpr std::size_t kPartsPerThread = 16;  // so that threads end together
constexpr std::size_t kPartEdges = 1 << 12;  // at least

// A list, or what of it is there.
struct List {
  std::size_t begin, end;  // its edges that count
  bool continues, goes_on;
};

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
  bool in_one_line;  // rows are short, and none of them is in two lines of the cache

  DISKGNN_INLINE List list(std::size_t i) const {
    const bool goes_on = lists.goes_on && i + 2 == lists.offsets.size();
    const std::size_t own = lists.skips_own && !goes_on ? 1 : 0;
    return {static_cast<std::size_t>(lists.offsets[i]), static_cast<std::size_t>(lists.offsets[i + 1]) - own,
            i == 0 && lists.continues, goes_on};
  }

  DISKGNN_INLINE const float* row(std::size_t edge) const {
    return rows + static_cast<std::size_t>(lists.sources[edge]) * width;
  }

  // All lines of a row, into the second cache: as many misses as the first one serves at a time would not do.
  DISKGNN_INLINE void prefetch(std::size_t edge) const {
    const auto* const bytes = reinterpret_cast<const std::byte*>(row(edge));
    __builtin_prefetch(bytes, 0, 2);
    if (in_one_line) return;
    const std::size_t last_byte = width * sizeof(float) - 1;
    for (std::size_t i = kLineBytes; i < last_byte; i += kLineBytes) __builtin_prefetch(bytes + i, 0, 2);
    __builtin_prefetch(bytes + last_byte, 0, 2);
  }
};

// Columns are summed in vectors. The last one ends with the last column, so that nothing is read behind a row; it may
// share columns with the one before it, whose sums are the same.
struct Vectors {
  std::size_t width, lanes, count;

  Vectors(std::size_t columns, std::size_t lanes_each)
      : width(columns), lanes(lanes_each), count((columns + lanes - 1) / lanes) {}

  DISKGNN_INLINE std::size_t column(std::size_t vector) const { return std::min(vector * lanes, width - lanes); }
};

// The sums of kCount vectors from number `first` on, in registers.
template <std::size_t kLanesEach, std::size_t kCount>
struct Sums {
  std::size_t columns[kCount];
  double held[kCount][kLanesEach];

  DISKGNN_INLINE Sums(const Vectors& vectors, std::size_t first) {
    for (std::size_t v = 0; v < kCount; ++v) columns[v] = vectors.column(first + v);
  }

  // Those of a list before its edges: zeros, or what the piece before found, which has a sum of each column.
  DISKGNN_INLINE void begin(bool continues, const double* begun) {
    for (std::size_t v = 0; v < kCount; ++v) {
      for (std::size_t j = 0; j < kLanesEach; ++j) held[v][j] = continues ? begun[columns[v] + j] : 0;
    }
  }

  // Adds the rows of edges [begin, end); prefetches those of edges before `prefetched_end`.
  template <bool kWeighted, typename Id>
  DISKGNN_INLINE void add(const Part<Id>& part, std::size_t begin, std::size_t end, std::size_t prefetched_end) {
    for (std::size_t e = begin; e < end; ++e) {
      if (e + kPrefetchedEdges < prefetched_end) part.prefetch(e + kPrefetchedEdges);
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
  }

  DISKGNN_INLINE void load(const double* kept) { std::memcpy(held, kept, sizeof(held)); }
  DISKGNN_INLINE void save(double* kept) const { std::memcpy(kept, held, sizeof(held)); }

  // Hands them on to the next piece, or writes means.
  DISKGNN_INLINE void end(bool goes_on, double total, double* carry, float* means) const {
    for (std::size_t v = 0; v < kCount; ++v) {
      for (std::size_t j = 0; j < kLanesEach; ++j) {
        if (goes_on) {
          carry[columns[v] + j] = held[v][j];
        } else {
          means[columns[v] + j] = total > 0 ? static_cast<float>(held[v][j] / total) : 0;
        }
      }
    }
  }
};

template <bool kWeighted, typename Id>
DISKGNN_INLINE double total_weight(const Part<Id>& part, const List& list) {
  double total = list.continues ? part.begun[part.width] : 0;
  if constexpr (!kWeighted) return total + static_cast<double>(list.end - list.begin);
  for (std::size_t e = list.begin; e < list.end; ++e) total += static_cast<double>(part.lists.weights[e]);
  return total;
}

// Rows of kCount vectors.
template <std::size_t kLanesEach, std::size_t kCount, bool kWeighted, typename Id>
DISKGNN_INLINE void sum_narrow(const Part<Id>& part, const Vectors& vectors) {
  for (std::size_t i = part.first; i < part.last; ++i) {
    const List list = part.list(i);
    Sums<kLanesEach, kCount> sums(vectors, 0);
    sums.begin(list.continues, part.begun);
    sums.template add<kWeighted>(part, list.begin, list.end, part.end);
    const double total = total_weight<kWeighted>(part, list);
    sums.end(list.goes_on, total, part.carry, part.target + i * part.width);
    if (list.goes_on) part.carry[part.width] = total;
  }
}

// Adds to `count` vectors of sums, kMost or fewer.
template <std::size_t kLanes, std::size_t kMost, bool kWeighted, typename Id>
DISKGNN_INLINE void add_some(std::size_t count, const Part<Id>& part, const Vectors& vectors, std::size_t first,
                             std::size_t begin, std::size_t end, std::size_t prefetched_end, double* kept) {
  if constexpr (kMost > 1) {
    if (count < kMost) {
      return add_some<kLanes, kMost - 1, kWeighted>(count, part, vectors, first, begin, end, prefetched_end, kept);
    }
  }
  Sums<kLanes, kMost> sums(vectors, first);
  sums.load(kept);
  sums.template add<kWeighted>(part, begin, end, prefetched_end);
  sums.save(kept);
}

// Rows of more vectors than kHeld, which registers hold the sums of: those of some edges, whose rows are in the cache
// then, a few columns at a time.
template <std::size_t kLanes, std::size_t kHeld, bool kWeighted, typename Id>
DISKGNN_INLINE void sum_wide(const Part<Id>& part, const Vectors& vectors) {
  std::vector<double> kept(vectors.count * kLanes);
  for (std::size_t i = part.first; i < part.last; ++i) {
    const List list = part.list(i);
    for (std::size_t v = 0; v < vectors.count; ++v) {
      Sums<kLanes, 1> sums(vectors, v);
      sums.begin(list.continues, part.begun);
      sums.save(kept.data() + v * kLanes);
    }
    for (std::size_t begin = list.begin; begin < list.end; begin += kEdgesAtATime) {
      const std::size_t end = std::min(begin + kEdgesAtATime, list.end);
      for (std::size_t v = 0; v < vectors.count; v += kHeld) {
        add_some<kLanes, kHeld, kWeighted>(std::min(kHeld, vectors.count - v), part, vectors, v, begin, end,
                                           v == 0 ? part.end : 0, kept.data() + v * kLanes);
      }
    }
    const double total = total_weight<kWeighted>(part, list);
    for (std::size_t v = 0; v < vectors.count; ++v) {
      Sums<kLanes, 1> sums(vectors, v);
      sums.load(kept.data() + v * kLanes);
      sums.end(list.goes_on, total, part.carry, part.target + i * part.width);
    }
    if (list.goes_on) part.carry[part.width] = total;
  }
}

// kMost vectors or fewer.
template <std::size_t kLanes, std::size_t kMost, bool kWeighted, typename Id>
DISKGNN_INLINE void sum_few(const Part<Id>& part, const Vectors& vectors) {
  if constexpr (kMost > 1) {
    if (vectors.count < kMost) return sum_few<kLanes, kMost - 1, kWeighted>(part, vectors);
  }
  sum_narrow<kLanes, kMost, kWeighted>(part, vectors);
}

// Rows of kLanes columns or more; registers hold the sums of kHeld vectors.
template <std::size_t kLanes, std::size_t kHeld, bool kWeighted, typename Id>
DISKGNN_INLINE void sum_lists(const Part<Id>& part) {
  const Vectors vectors(part.width, kLanes);
  if (vectors.count <= kHeld) return sum_few<kLanes, kHeld, kWeighted>(part, vectors);
  sum_wide<kLanes, kHeld, kWeighted>(part, vectors);
}

template <bool kWeighted, typename Id>
void sum_any(const Part<Id>& part) {
  sum_lists<4, 4, kWeighted>(part);
}

#if defined(__x86_64__)
template <bool kWeighted, typename Id>
__attribute__((target("avx2"))) void sum_avx2(const Part<Id>& part) {
  sum_lists<4, 8, kWeighted>(part);
}

template <bool kWeighted, typename Id>
__attribute__((target("avx512f,avx512vl"))) void sum_avx512(const Part<Id>& part) {
  sum_lists<8, 8, kWeighted>(part);
}
#endif

// Rows of fewer columns than a vector has.
template <std::size_t kWidth, bool kWeighted, typename Id>
void sum_least(const Part<Id>& part) {
  sum_narrow<kWidth, 1, kWeighted>(part, Vectors(kWidth, kWidth));
}

template <bool kWeighted, typename Id>
auto summing(std::size_t width) {
  if (width == 1) return sum_least<1, kWeighted, Id>;
  if (width == 2) return sum_least<2, kWeighted, Id>;
  if (width == 3) return sum_least<3, kWeighted, Id>;
#if defined(__x86_64__)
  static const bool with_avx2 = has_avx2(), with_avx512 = has_avx512();
  if (with_avx512 && width >= 8) return sum_avx512<kWeighted, Id>;
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
  const bool in_one_line =
      kLineBytes % (width * sizeof(float)) == 0 && reinterpret_cast<std::uintptr_t>(rows.data()) % kLineBytes == 0;
  std::atomic<std::size_t> taken{0};
  const auto work = [&] {
    for (std::size_t number; (number = taken.fetch_add(1)) < num_parts;) {
      const std::size_t first = row_at(number), last = row_at(number + 1);
      const auto begin = static_cast<std::size_t>(lists.offsets[first]);
      const auto end = static_cast<std::size_t>(lists.offsets[last]);
      require_rows(lists.sources.subspan(begin, end - begin), rows.size() / width);
      sum(Part<Id>{lists, rows.data(), width, first, last, end, begun.data(), carry.data(), target.data(),
                   in_one_line});
    }
  };
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(threads, num_parts)), work);
}

template void mean_rows(const EdgeLists<std::int32_t>&, std::span<double>, std::span<const float>, std::size_t,
                        std::span<float>, unsigned);
template void mean_rows(const EdgeLists<std::int64_t>&, std::span<double>, std::span<const float>, std::size_t,
                        std::span<float>, unsigned);

void scale_rows(std::span<float> rows, std::size_t width, std::span<const float> scales) {
  for (std::size_t i = 0; i < scales.size(); ++i) {
    for (float& value : rows.subspan(i * width, width)) value *= scales[i];
  }
}

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
