#include "graph/text_hashing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "draws.h"

namespace diskgnn {
namespace {

constexpr std::uint32_t kUnknown = 0xfffd;                       // in place of what is no UTF-8
constexpr std::uint32_t kBegin = '<', kEnd = '>', kBetween = 0;  // marks of words, which have no such characters
constexpr std::size_t kLongest = 5;                              // parts of words, of 3 characters and more
constexpr std::size_t kParts = kLongest - 3 + 1;                 // that begin at a character, at most
constexpr std::int32_t kFew = 8;
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

// One text after the other. There are no branches where words end, which nobody could predict.
class TextHasher {
 public:
  explicit TextHasher(std::size_t width) : counts_(width) {}

  void hash(std::string_view text, std::span<std::int8_t> codes) {
    read_words(text);
    add_parts();
    count();
    write(codes);
  }

 private:
  // Takes words between their marks, kBetween behind each, and their states.
  void read_words(std::string_view text) {
    const std::size_t most = 4 * text.size() + kLongest;  // of letters that stand alone
    if (characters_.size() < most) {
      characters_.resize(most);
      lengths_.resize(most);
      states_.resize(kParts * most);
    }
    num_characters_ = num_states_ = 0;
    std::uint64_t word = 0;
    bool is_inside = false;
    const auto put = [&](std::uint32_t c) {
      characters_[num_characters_++] = c;
      word = step(word, c);
    };
    const auto end_word = [&] {
      put(kEnd);
      states_[num_states_++] = word;
      characters_[num_characters_++] = kBetween;
      is_inside = false;
    };
    for (std::size_t i = 0; i < text.size();) {
      const auto byte = static_cast<unsigned char>(text[i]);
      std::uint32_t c;
      if (byte < 0x80) {
        c = kOfWords[byte];
        ++i;
      } else {
        c = character(text, i);
        if (!is_of_word(c)) c = kBetween;
      }
      if (c != kBetween) {
        if (!is_inside) {
          word = 0;
          is_inside = true;
          put(kBegin);
        }
        put(c);
      } else if (is_inside) {
        end_word();
      }
    }
    if (is_inside) end_word();
    std::fill_n(characters_.begin() + static_cast<std::ptrdiff_t>(num_characters_), kLongest, kBetween);
  }

  // Takes the states of all parts of words but those that are the whole word.
  void add_parts() {
    std::uint32_t length = 0;  // from a character to the end of its word
    for (std::size_t i = num_characters_; i-- > 0;) {
      length = characters_[i] == kBetween ? 0 : length + 1;
      lengths_[i] = length - (characters_[i] == kBegin);
    }
    const std::uint32_t* const c = characters_.data();
    std::size_t put = num_states_;
    for (std::size_t i = 0; i < num_characters_; ++i) {
      const std::uint64_t three = step(step(step(0, c[i]), c[i + 1]), c[i + 2]);
      const std::uint64_t four = step(three, c[i + 3]), five = step(four, c[i + 4]);
      states_[put] = three;
      put += lengths_[i] >= 3;
      states_[put] = four;
      put += lengths_[i] >= 4;
      states_[put] = five;
      put += lengths_[i] >= 5;
    }
    num_states_ = put;
  }

  void count() {
    const std::uint64_t width = counts_.size();
    for (std::size_t i = 0; i < num_states_; ++i) {
      const std::uint64_t hash = mix64(states_[i]);
      const std::uint64_t place = (hash >> 32) * width >> 32;
      counts_[place] += static_cast<std::int32_t>(hash & 1) * 2 - 1;
      states_[i] = place;
    }
  }

  // Square roots make what is there often count less, and leave a vector of length 1 after one division. They are
  // rounded the same on all machines.
  void write(std::span<std::int8_t> codes) {
    std::int64_t total = 0;
    std::size_t num_places = 0;
    for (std::size_t i = 0; i < num_states_; ++i) {  // a place that is there again counts once
      const std::uint64_t place = states_[i];
      const std::int32_t count = std::exchange(counts_[place], 0);
      total += std::abs(count);
      states_[num_places] = static_cast<std::uint64_t>(static_cast<std::uint32_t>(count)) << 32 | place;
      num_places += count != 0;
    }
    // Of both signs, which nobody could predict either.
    std::array<std::int8_t, 2 * kFew + 1> of_few{};
    for (std::int32_t count = 1; count <= std::min<std::int64_t>(kFew, total); ++count) {
      of_few[static_cast<std::size_t>(kFew + count)] = code(count, total);
      of_few[static_cast<std::size_t>(kFew - count)] = static_cast<std::int8_t>(-code(count, total));
    }
    std::ranges::fill(codes, std::int8_t{0});
    for (std::size_t i = 0; i < num_places; ++i) {
      const auto count = static_cast<std::int32_t>(states_[i] >> 32);
      std::int8_t& found = codes[states_[i] & 0xffffffff];
      if (std::abs(count) <= kFew) {
        found = of_few[static_cast<std::size_t>(kFew + count)];
      } else {
        found = count < 0 ? static_cast<std::int8_t>(-code(-count, total)) : code(count, total);
      }
    }
  }

  static std::int8_t code(std::int32_t count, std::int64_t total) {
    return static_cast<std::int8_t>(
        std::nearbyint(kSteps * std::sqrt(static_cast<double>(count) / static_cast<double>(total))));
  }

  std::vector<std::int32_t> counts_;
  std::vector<std::uint32_t> characters_, lengths_;
  std::size_t num_characters_ = 0;
  std::vector<std::uint64_t> states_;
  std::size_t num_states_ = 0;
};

}  // namespace

void hash_texts(const Strings& texts, std::size_t width, std::span<std::int8_t> codes) {
  TextHasher hasher(width);
  for (std::size_t i = 0; i < texts.size(); ++i) hasher.hash(texts[i], codes.subspan(i * width, width));
}

}  // namespace diskgnn
