#include "sampling/edge_choice.h"

#include <bit>
#include <cmath>

#include "draws.h"
#include "graph/neighbor_order.h"

namespace diskgnn {
namespace {

// -ln of a number in (0, 1] that 64 random bits stand for. Made of additions, multiplications and divisions, whose
// results IEEE 754 fixes: the same bits on every machine, which std::log does not promise.
double exponential(std::uint64_t bits) {
  const std::uint64_t mantissa = (bits >> 11) + 1;  // in [1, 2^53]
  int exponent = std::bit_width(mantissa) - 1;      // mantissa = m * 2^exponent, m in [1, 2)
  double m = std::ldexp(static_cast<double>(mantissa), -exponent);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double z = (m - 1) / (m + 1), square = z * z;  // ln m = 2 artanh z, |z| < 0.172
  double sum = 0;
  for (int k = 19; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  constexpr double kLn2 = 0.6931471805599453;
  return std::max(0.0, (53 - exponent) * kLn2 - 2 * z * sum);
}

// Latest first: flipping the sign bit puts negative times, which are before 1970, before the others.
std::uint64_t latest_first(std::int64_t time) { return ~(static_cast<std::uint64_t>(time) ^ (std::uint64_t{1} << 63)); }

// Numbers that are not negative are in the order of their bits.
std::uint64_t ordered_bits(double value) { return std::bit_cast<std::uint64_t>(value); }

}  // namespace

template <typename Index>
void choose(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run, Choice& choice) {
  for (std::size_t i = 0; i < run.sources.size(); ++i) {
    const std::int64_t source = run.sources[i], position = run.first + static_cast<std::int64_t>(i);
    if (source < 0 || source >= rules.num_sources) throw_no_source(source, rules.num_sources);
    // An edge is as old as itself; where edges have no times, as its source.
    std::int64_t time = list.times.first;
    if (!rules.source_times.empty()) {
      time = rules.source_times[static_cast<std::size_t>(source)];
      if (time > list.times.last) continue;
    }
    if (run.times != nullptr) {
      time = run.times[i];
      if (time > list.times.last) continue;
    }
    if (time < list.times.first) continue;
    if (run.weights != nullptr && !(run.weights[i] > 0)) continue;
    std::uint64_t key;
    if (rules.latest) {
      key = latest_first(time);
    } else if (run.weights != nullptr) {
      const std::uint64_t bits = rules.slice_start ? combine(*rules.slice_start, static_cast<std::uint64_t>(source))
                                                   : mix64(list.state + static_cast<std::uint64_t>(position));
      key = ordered_bits(exponential(bits) / static_cast<double>(run.weights[i]));
    } else if (rules.slice_start) {
      key = order_hash(source) - *rules.slice_start;
    } else {
      key = mix64(list.state + static_cast<std::uint64_t>(position));
    }
    const Candidate candidate{key, run.begin + position, source};
    // Searched last: of a long list, few are among the smallest.
    if (choice.takes(candidate) && !list.excluded.contains(source)) choice.add(candidate);
  }
}

void sort_by_position(std::span<Candidate> drawn) {
  std::sort(drawn.begin(), drawn.end(), [](const Candidate& a, const Candidate& b) { return a.position < b.position; });
}

void throw_no_source(std::int64_t node, std::int64_t num_sources) {
  throw std::out_of_range("neighbour " + std::to_string(node) + " is not in [0, " + std::to_string(num_sources) + ")");
}

template void choose(const ChoiceRules&, const ListRules&, const EdgeRun<std::int32_t>&, Choice&);
template void choose(const ChoiceRules&, const ListRules&, const EdgeRun<std::int64_t>&, Choice&);

}  // namespace diskgnn
