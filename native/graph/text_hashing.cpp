#include "graph/text_hashing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "draws.h"
#include "files/cpu_features.h"

#define DISKGNN_INLINE inline __attribute__((always_inline))  // into functions for one kind of processors, too

namespace diskgnn {
namespace {

constexpr std::uint32_t kUnknown = 0xfffd;                       // in place of what is no UTF-8
constexpr std::uint32_t kBegin = '<', kEnd = '>', kBetween = 0;  // marks of words, which have no such characters
constexpr std::size_t kLongest = 5;                              // parts of words, of 3 characters and more
constexpr std::size_t kParts = kLongest - 3 + 1;                 // that begin at a character, at most
constexpr std::size_t kLanes = 16;                               // characters are looked at so many at a time
constexpr std::size_t kBlock = 32 * kLanes;                      // whose parts wait to be counted
constexpr std::int8_t kFew = 8;
constexpr std::size_t kSmall = 1024;  // sums of counts whose codes are known beforehand
constexpr double kSteps = 127;

// The character at `i`, and moves `i` behind it.
std::uint32_t character(std::string_view text, std::size_t& i) {
  const auto byte = [&](std::size_t at) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[at])); };
  const std::uint32_t first = byte(i++);
  if (first < 0x80) return first;
  const std::size_t more = first >= 0xf0 && first < 0xf5   ? 3
                           : first >= 0xe0 && first < 0xf0 ? 2
                           : first >= 0xc2 && first < 0xe0 ? 1
                                                           : 0;
  if (more == 0 || text.size() - i < more) return kUnknown;
  std::uint32_t found = first & (0x3fU >> more);
  for (std::size_t j = 0; j < more; ++j) {
    if ((byte(i + j) & 0xc0) != 0x80) return kUnknown;
    found = found << 6 | (byte(i + j) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (found < kLeast[more] || found > 0x10ffff || (found >= 0xd800 && found < 0xe000)) return kUnknown;
  i += more;
  return found;
}

// Of words: digits, letters and all beyond ASCII, but for blocks of spaces, punctuation and symbols.
constexpr bool is_of_word(std::uint32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  if (c < 0xc0) return c == 0xaa || c == 0xb5 || c == 0xba;
  if (c < 0x2000) return c != 0xd7 && c != 0xf7;
  if (c < 0x3040) return c >= 0x2c00 && !(c >= 0x2e00 && c < 0x2e80) && c < 0x3000;
  return !(c >= 0xfe10 && c < 0xfe70 && (c < 0xfe20 || c >= 0xfe30)) && !(c >= 0xff00 && c < 0xff10) &&
         !(c >= 0xfff0 && c < 0x10000);
}

// Of ASCII: the character of a word, a small letter where it is one, or kBetween.
constexpr auto kOfWords = [] {
  std::array<std::uint32_t, 0x80> found{};
  for (std::uint32_t c = 0; c < found.size(); ++c) {
    found[c] = !is_of_word(c) ? kBetween : c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c;
  }
  return found;
}();

constexpr std::uint64_t step(std::uint64_t state, std::uint32_t character) {
  return (state ^ character) * 0x9e3779b97f4a7c15;
}

constexpr std::uint64_t kBegun = step(0, kBegin);

// Where a state is counted: at its place, or `width` behind it if it counts 1 less.
DISKGNN_INLINE std::uint32_t counter(std::uint64_t state, std::uint32_t width) {
  const std::uint64_t hash = mix64(state);
  return static_cast<std::uint32_t>((hash >> 32) * width >> 32) + (width & (static_cast<std::uint32_t>(hash & 1) - 1));
}

// The counters [kParts, count] of the parts that begin at each of `count` characters, a multiple of kLanes with
// kLongest - 1 more behind them. A character where no such part begins, or which is the whole word, has one of kLanes
// counters that nobody reads, behind those of the places: one alone would have all of them wait for each other.
DISKGNN_INLINE void find_parts(const std::uint32_t* __restrict c, std::size_t count, std::uint32_t width,
                               std::uint32_t* __restrict counters) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t three = step(step(step(0, c[i]), c[i + 1]), c[i + 2]);
    const std::uint64_t four = step(three, c[i + 3]), five = step(four, c[i + 4]);
    const std::uint32_t none = 2 * width + static_cast<std::uint32_t>(i % kLanes);
    const bool begins = c[i] == kBegin;
    const bool has_three = (c[i] != kBetween) & (c[i + 1] != kBetween) & (c[i + 2] != kBetween);
    const bool has_four = has_three & (c[i + 3] != kBetween), has_five = has_four & (c[i + 4] != kBetween);
    counters[i] = (has_three & !(begins & (c[i + 2] == kEnd))) ? counter(three, width) : none;
    counters[count + i] = (has_four & !(begins & (c[i + 3] == kEnd))) ? counter(four, width) : none;
    counters[2 * count + i] = (has_five & !(begins & (c[i + 4] == kEnd))) ? counter(five, width) : none;
  }
}

struct Sums {
  std::int64_t total;  // of the magnitudes of counts
  std::int32_t largest;
};

// The counts of all places, as far as kFew + 1.
DISKGNN_INLINE Sums find_counts(const std::uint32_t* __restrict counted, std::size_t width,
                                std::int8_t* __restrict counts) {
  std::int64_t total = 0;
  std::int32_t largest = 0;
  for (std::size_t place = 0; place < width; ++place) {
    const auto count = static_cast<std::int32_t>(counted[place] - counted[width + place]);
    const std::int32_t magnitude = count < 0 ? -count : count;
    total += magnitude;
    largest = std::max(largest, magnitude);
    counts[place] = static_cast<std::int8_t>(std::clamp(count, -kFew - 1, kFew + 1));
  }
  return {total, largest};
}

using Steps = std::array<std::int8_t, kFew>;  // from the code of each count below kFew to that of the next one

// The code of a magnitude: the steps up to it.
template <std::size_t... kNumbers>
DISKGNN_INLINE std::int8_t code_of(std::int8_t magnitude, const Steps& steps, std::index_sequence<kNumbers...>) {
  std::int8_t found = 0;
  ((found = static_cast<std::int8_t>(found + (steps[kNumbers] & -(magnitude > static_cast<int>(kNumbers))))), ...);
  return found;
}

// Counts of both signs come in an order that nobody could predict: there are no branches.
DISKGNN_INLINE void find_codes(const std::int8_t* __restrict counts, std::size_t width, const Steps& given,
                               std::int8_t* __restrict codes) {
  const Steps steps = given;
  for (std::size_t place = 0; place < width; ++place) {
    const std::int8_t count = counts[place], magnitude = static_cast<std::int8_t>(count < 0 ? -count : count);
    const std::int8_t found = code_of(magnitude, steps, std::make_index_sequence<kFew>());
    codes[place] = static_cast<std::int8_t>(count < 0 ? -found : found);
  }
}

struct Kernels {
  void (*find_parts)(const std::uint32_t*, std::size_t, std::uint32_t, std::uint32_t*);
  Sums (*find_counts)(const std::uint32_t*, std::size_t, std::int8_t*);
  void (*find_codes)(const std::int8_t*, std::size_t, const Steps&, std::int8_t*);
};

#define DISKGNN_KERNELS(NAME, TARGET)                                                                    \
  TARGET void find_parts_##NAME(const std::uint32_t* c, std::size_t count, std::uint32_t width,          \
                                std::uint32_t* counters) {                                               \
    find_parts(c, count, width, counters);                                                               \
  }                                                                                                      \
  TARGET Sums find_counts_##NAME(const std::uint32_t* counted, std::size_t width, std::int8_t* counts) { \
    return find_counts(counted, width, counts);                                                          \
  }                                                                                                      \
  TARGET void find_codes_##NAME(const std::int8_t* counts, std::size_t width, const Steps& steps,        \
                                std::int8_t* codes) {                                                    \
    find_codes(counts, width, steps, codes);                                                             \
  }                                                                                                      \
  constexpr Kernels k_##NAME = {find_parts_##NAME, find_counts_##NAME, find_codes_##NAME};

DISKGNN_KERNELS(any, )
#if defined(__x86_64__)
DISKGNN_KERNELS(avx2, __attribute__((target("avx2"))))
DISKGNN_KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))))

const Kernels& kernels() {
  static const Kernels& found = has_avx512() ? k_avx512 : has_avx2() ? k_avx2 : k_any;
  return found;
}
#else
const Kernels& kernels() { return k_any; }
#endif

// Square roots make what is there often count less, and leave a vector of length 1 after one division. They are rounded
// the same on all machines.
std::int8_t code(std::int32_t count, std::int64_t total) {
  return static_cast<std::int8_t>(
      std::nearbyint(kSteps * std::sqrt(static_cast<double>(count) / static_cast<double>(total))));
}

Steps steps_of(std::int64_t total) {
  Steps steps{};
  std::int8_t before = 0;
  for (std::int32_t count = 1; count <= std::min<std::int64_t>(kFew, total); ++count) {
    const std::int8_t found = code(count, total);
    steps[static_cast<std::size_t>(count - 1)] = static_cast<std::int8_t>(found - before);
    before = found;
  }
  return steps;
}

const std::vector<Steps>& small_steps() {
  static const std::vector<Steps> steps = [] {
    std::vector<Steps> found;
    for (std::size_t total = 0; total < kSmall; ++total) found.push_back(steps_of(static_cast<std::int64_t>(total)));
    return found;
  }();
  return steps;
}

// One text after the other. There are no branches where words begin and end, which nobody could predict.
class TextHasher {
 public:
  explicit TextHasher(std::size_t width)
      : width_(width), counted_(2 * width + kLanes), counts_(width), counters_(kParts * kBlock) {}

  void hash(std::string_view text, std::int8_t* codes) {
    read_words(text);
    count();
    write(codes);
  }

 private:
  // Takes words between their marks, kBetween behind each, and counts them.
  void read_words(std::string_view text) {
    const std::size_t most = 4 * text.size() + kBlock + kLongest;  // of letters that stand alone, and behind them
    if (characters_.size() < most) {
      characters_.resize(most);
      words_.resize(text.size() + 1);
    }
    std::uint32_t* const characters = characters_.data();
    std::size_t num_characters = 0, num_words = 0;
    std::uint64_t word = kBegun;
    bool is_inside = false;
    const auto take = [&](std::uint32_t c) {
      const bool is_of_word = c != kBetween, begins = is_of_word & !is_inside, ends = is_inside & !is_of_word;
      characters[num_characters] = kBegin;
      num_characters += begins;
      characters[num_characters] = is_of_word ? c : kEnd;
      num_characters += is_of_word | ends;
      characters[num_characters] = kBetween;
      num_characters += ends;
      words_[num_words] = step(word, kEnd);
      num_words += ends;
      word = step(is_inside ? word : kBegun, c);
      is_inside = is_of_word;
    };
    for (std::size_t i = 0; i < text.size();) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (byte < 0x80) {
        take(kOfWords[byte]);
        ++i;
      } else {
        const std::uint32_t c = character(text, i);
        take(is_of_word(c) ? c : kBetween);
      }
    }
    take(kBetween);
    std::fill_n(characters + num_characters, kLanes + kLongest, kBetween);
    num_characters_ = num_characters;
    for (std::size_t i = 0; i < num_words; ++i) ++counted_[counter(words_[i], static_cast<std::uint32_t>(width_))];
  }

  // Counts all parts of words but those that are the whole word.
  void count() {
    for (std::size_t first = 0; first < num_characters_; first += kBlock) {
      const std::size_t left = std::min(kBlock, num_characters_ - first), num = (left + kLanes - 1) / kLanes * kLanes;
      kernels_.find_parts(characters_.data() + first, num, static_cast<std::uint32_t>(width_), counters_.data());
      for (const std::uint32_t counter : std::span(counters_).first(kParts * num)) ++counted_[counter];
    }
  }

  void write(std::int8_t* codes) {
    const Sums found = kernels_.find_counts(counted_.data(), width_, counts_.data());
    const bool is_small = found.total < static_cast<std::int64_t>(kSmall);
    kernels_.find_codes(counts_.data(), width_,
                        is_small ? small_steps_[static_cast<std::size_t>(found.total)] : steps_of(found.total), codes);
    for (std::size_t place = 0; found.largest > kFew && place < width_; ++place) {
      const auto count = static_cast<std::int32_t>(counted_[place] - counted_[width_ + place]);
      if (std::abs(count) <= kFew) continue;
      const std::int8_t of_many = code(std::abs(count), found.total);
      codes[place] = count < 0 ? static_cast<std::int8_t>(-of_many) : of_many;
    }
    std::ranges::fill(counted_, 0);
  }

  std::size_t width_;
  const Kernels& kernels_ = kernels();
  const std::vector<Steps>& small_steps_ = small_steps();
  std::vector<std::uint32_t> characters_;
  std::size_t num_characters_ = 0;
  std::vector<std::uint64_t> words_;
  std::vector<std::uint32_t> counted_;  // how often each place counts 1 more, then 1 less, then what nobody reads
  std::vector<std::int8_t> counts_;
  std::vector<std::uint32_t> counters_;
};

}  // namespace

void hash_texts(const Strings& texts, const CodeRows& codes) {
  TextHasher hasher(codes.width);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    hasher.hash(texts[i], codes.data + static_cast<std::ptrdiff_t>(i) * codes.row_step);
  }
}

}  // namespace diskgnn
