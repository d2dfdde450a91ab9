#include "propagation/neighbour_means.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <vector>

#include "files/parallel.h"

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchedEdges = 24;
constexpr std::size_t kMostColumns = 16;     // summed at a time: a cache line of a row
constexpr std::size_t kPartsPerThread = 4;   // so that threads end together
constexpr std::size_t kPartEdges = 1 << 14;  // at least

// Adds rows [begin, end) of a list to kColumns sums.
template <std::size_t kColumns, typename Id>
void add_rows(const EdgeLists<Id>& lists, std::size_t begin, std::size_t end, const float* rows, std::size_t width,
              double* sums) {
  std::array<double, kColumns> held;
  std::copy_n(sums, kColumns, held.begin());
  const std::size_t num_sources = lists.sources.size();
  for (std::size_t e = begin; e < end; ++e) {
    if (e + kPrefetchedEdges < num_sources) {
      __builtin_prefetch(rows + static_cast<std::size_t>(lists.sources[e + kPrefetchedEdges]) * width);
    }
    const float* row = rows + static_cast<std::size_t>(lists.sources[e]) * width;
    if (lists.weights.empty()) {
      for (std::size_t j = 0; j < kColumns; ++j) held[j] += static_cast<double>(row[j]);
    } else {
      const auto weight = static_cast<double>(lists.weights[e]);
      for (std::size_t j = 0; j < kColumns; ++j) held[j] += weight * static_cast<double>(row[j]);
    }
  }
  std::copy_n(held.begin(), kColumns, sums);
}

template <typename Id>
void add_all_columns(const EdgeLists<Id>& lists, std::size_t begin, std::size_t end, const float* rows,
                     std::size_t width, double* sums) {
  std::size_t column = 0;
  for (; column + kMostColumns <= width; column += kMostColumns) {
    add_rows<kMostColumns>(lists, begin, end, rows + column, width, sums + column);
  }
  const auto add_rest = [&]<std::size_t kColumns>() {
    if (width - column < kColumns) return;
    add_rows<kColumns>(lists, begin, end, rows + column, width, sums + column);
    column += kColumns;
  };
  add_rest.template operator()<8>();
  add_rest.template operator()<4>();
  add_rest.template operator()<2>();
  add_rest.template operator()<1>();
}

}  // namespace

template <typename Id>
void mean_rows(const EdgeLists<Id>& lists, std::span<double> carry, std::span<const float> rows, std::size_t width,
               std::span<float> target, unsigned threads) {
  const std::size_t num_rows = lists.offsets.size() - 1, num_edges = lists.sources.size();
  const std::vector<double> begun(carry.begin(), carry.end());

  const auto sum_list = [&](std::size_t i, std::vector<double>& sums) {
    const bool goes_on = lists.goes_on && i + 1 == num_rows;
    const auto begin = static_cast<std::size_t>(lists.offsets[i]);
    auto end = static_cast<std::size_t>(lists.offsets[i + 1]);
    if (lists.skips_own && !goes_on) --end;
    if (i == 0 && lists.continues) {
      sums = begun;
    } else {
      std::fill(sums.begin(), sums.end(), 0.0);
    }
    add_all_columns(lists, begin, end, rows.data(), width, sums.data());
    double& total = sums[width];
    if (lists.weights.empty()) {
      total += static_cast<double>(end - begin);
    } else {
      for (std::size_t e = begin; e < end; ++e) total += static_cast<double>(lists.weights[e]);
    }
    if (goes_on) {
      std::copy(sums.begin(), sums.end(), carry.begin());
      return;
    }
    for (std::size_t j = 0; j < width; ++j) {
      target[i * width + j] = total > 0 ? static_cast<float>(sums[j] / total) : 0.0F;
    }
  };

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
    std::vector<double> sums(width + 1);
    for (std::size_t part; (part = taken.fetch_add(1)) < num_parts;) {
      for (std::size_t i = row_at(part), last = row_at(part + 1); i < last; ++i) sum_list(i, sums);
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
