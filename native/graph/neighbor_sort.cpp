#include "graph/neighbor_sort.h"

#include <algorithm>
#include <bit>

#include "draws.h"
#include "files/cpu_features.h"
#include "graph/neighbor_order.h"

namespace diskgnn {
namespace {

constexpr std::size_t kMost = 1 << 13;     // hashes at a time
constexpr std::size_t kCompared = 1 << 6;  // hashes of which each is compared with each: no branch depends on them
constexpr int kHashBits = 64;

// sorted[rank of a hash] = the hash. Equal ones keep their order.
inline __attribute__((always_inline)) void rank_each(const std::uint64_t* hashes, std::size_t count,
                                                     std::uint64_t* sorted) {
  constexpr std::uint64_t kSign = std::uint64_t{1} << 63;  // vectors are compared as signed numbers
  for (std::size_t i = 0; i < count; ++i) {
    const auto own = static_cast<std::int64_t>(hashes[i] ^ kSign);
    std::int64_t rank = 0;
    for (std::size_t j = 0; j < i; ++j) rank += static_cast<std::int64_t>(hashes[j] ^ kSign) <= own ? 1 : 0;
    for (std::size_t j = i + 1; j < count; ++j) rank += static_cast<std::int64_t>(hashes[j] ^ kSign) < own ? 1 : 0;
    sorted[rank] = hashes[i];
  }
}

void rank_any(const std::uint64_t* hashes, std::size_t count, std::uint64_t* sorted) {
  rank_each(hashes, count, sorted);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void rank_avx2(const std::uint64_t* hashes, std::size_t count, std::uint64_t* sorted) {
  rank_each(hashes, count, sorted);
}
#endif

auto ranking() {
#if defined(__x86_64__)
  static const bool with_avx2 = has_avx2();
  if (with_avx2) return rank_avx2;
#endif
  return rank_any;
}

}  // namespace

NeighborSort::NeighborSort() : hashes_(kMost), sorted_(kMost), ends_(kMost + 1) {}

template <typename Node>
void NeighborSort::sort(std::span<Node> nodes) {
  sort_below(nodes, 0);
}

template <typename Node>
void NeighborSort::sort_below(std::span<Node> nodes, int shared_bits) {
  const std::size_t count = nodes.size();
  if (count < 2 || shared_bits == kHashBits) return;
  if (count > kMost) {
    const auto bit = std::uint64_t{1} << (kHashBits - 1 - shared_bits);
    const auto lower = [bit](Node node) { return (order_hash(node) & bit) == 0; };
    const auto middle = std::partition(nodes.begin(), nodes.end(), lower) - nodes.begin();
    sort_below(nodes.first(static_cast<std::size_t>(middle)), shared_bits + 1);
    return sort_below(nodes.subspan(static_cast<std::size_t>(middle)), shared_bits + 1);
  }
  std::transform(nodes.begin(), nodes.end(), hashes_.begin(), [](Node node) { return order_hash(node); });
  if (count <= kCompared) {
    ranking()(hashes_.data(), count, sorted_.data());
  } else {
    place(count, shared_bits);
  }
  const auto node = [](std::uint64_t hash) { return static_cast<Node>(node_of_order_hash(hash)); };
  std::transform(sorted_.begin(), sorted_.begin() + static_cast<std::ptrdiff_t>(count), nodes.begin(), node);
}

// Hashes are uniform: each goes to about its place, which those before it decide.
void NeighborSort::place(std::size_t count, int shared_bits) {
  const auto expected = [&](std::uint64_t hash) { return static_cast<std::size_t>(below(hash << shared_bits, count)); };
  std::fill_n(ends_.begin(), count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) ++ends_[expected(hashes_[i]) + 1];
  for (std::size_t i = 0; i < count; ++i) ends_[i + 1] += ends_[i];
  for (std::size_t i = 0; i < count; ++i) sorted_[ends_[expected(hashes_[i])]++] = hashes_[i];
  for (std::size_t i = 1; i < count; ++i) {
    const std::uint64_t hash = sorted_[i];
    std::size_t to = i;
    for (; to > 0 && sorted_[to - 1] > hash; --to) sorted_[to] = sorted_[to - 1];
    sorted_[to] = hash;
  }
}

template void NeighborSort::sort(std::span<std::int32_t>);
template void NeighborSort::sort(std::span<std::int64_t>);

}  // namespace diskgnn
