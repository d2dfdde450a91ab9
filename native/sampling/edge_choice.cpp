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

// Below it, looking at every edge is faster than searching.
constexpr std::size_t kShortRun = 64;

template <typename Index>
std::int64_t source_at(const ChoiceRules& rules, const EdgeRun<Index>& run, std::size_t i) {
  const std::int64_t source = run.sources[i];
  if (source < 0 || source >= rules.num_sources) throw_no_source(source, rules.num_sources);
  return source;
}

template <typename Index>
bool has_ages(const ChoiceRules& rules, const EdgeRun<Index>& run) {
  return run.times != nullptr || !rules.source_times.empty();
}

// An edge is as old as itself; where edges have no times, as its source.
template <typename Index>
std::int64_t time_at(const ChoiceRules& rules, const EdgeRun<Index>& run, std::size_t i) {
  if (run.times != nullptr) return run.times[i];
  return rules.source_times[static_cast<std::size_t>(source_at(rules, run, i))];
}

// Offers the latest of a run in the order of time, group by group of equal times, until as many passed as are drawn.
template <typename Index>
void choose_latest(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run, Choice& choice) {
  std::size_t left = choice.capacity();
  for (std::size_t stop = run.sources.size(); stop > 0 && left > 0;) {
    const std::int64_t time = time_at(rules, run, stop - 1);
    const auto is_earlier = [&](std::size_t i) { return time_at(rules, run, i) < time; };
    std::size_t step = 1;  // equal times are few, most often
    while (step < stop && !is_earlier(stop - 1 - step)) step *= 2;
    const std::size_t begin = first_not(step < stop ? stop - step : 0, stop - 1, is_earlier);
    for (std::size_t i = begin; i < stop && left > 0; ++i) {
      const std::int64_t source = source_at(rules, run, i);
      if (time < list.times.first || time > list.times.last) continue;
      if (!rules.source_times.empty() && rules.source_times[static_cast<std::size_t>(source)] > list.times.last)
        continue;
      if (run.weights != nullptr && !(run.weights[i] > 0)) continue;
      if (list.excluded.contains(source)) continue;
      const Candidate candidate{latest_first(time), run.begin + run.first + static_cast<std::int64_t>(i), source};
      if (choice.takes(candidate)) choice.add(candidate);
      --left;
    }
    stop = begin;
  }
}

// Numbers that are not negative are in the order of their bits.
std::uint64_t ordered_bits(double value) { return std::bit_cast<std::uint64_t>(value); }

}  // namespace

template <typename Index>
EdgeRun<Index> in_range(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run) {
  const std::size_t count = run.sources.size();
  if (!rules.by_time || count < kShortRun || !has_ages(rules, run)) return run;
  const auto is_before = [&](std::size_t i) { return time_at(rules, run, i) < list.times.first; };
  const auto is_not_after = [&](std::size_t i) { return time_at(rules, run, i) <= list.times.last; };
  const std::size_t first = list.times.empty() ? count : first_not(0, count, is_before);
  const std::size_t stop = first_not(first, count, is_not_after);
  return {run.sources.subspan(first, stop - first), run.times == nullptr ? nullptr : run.times + first,
          run.weights == nullptr ? nullptr : run.weights + first, run.begin,
          run.first + static_cast<std::int64_t>(first)};
}

template <typename Index>
void choose(const ChoiceRules& rules, const ListRules& list, const EdgeRun<Index>& run, Choice& choice) {
  if (rules.latest && rules.by_time && run.sources.size() >= kShortRun && has_ages(rules, run)) {
    choose_latest(rules, list, run, choice);
    return;
  }
  for (std::size_t i = 0; i < run.sources.size(); ++i) {
    const std::int64_t source = source_at(rules, run, i), position = run.first + static_cast<std::int64_t>(i);
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

template EdgeRun<std::int32_t> in_range(const ChoiceRules&, const ListRules&, const EdgeRun<std::int32_t>&);
template EdgeRun<std::int64_t> in_range(const ChoiceRules&, const ListRules&, const EdgeRun<std::int64_t>&);
template void choose(const ChoiceRules&, const ListRules&, const EdgeRun<std::int32_t>&, Choice&);
template void choose(const ChoiceRules&, const ListRules&, const EdgeRun<std::int64_t>&, Choice&);

}  // namespace diskgnn
