// Texts as short vectors: words and parts of words, counted in as many places as the vector has, by their hashes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "graph/id_ranges.h"

namespace diskgnn {

// Vectors that may be columns of records: number i is data[i * row_step..i * row_step + width).
struct CodeRows {
  std::int8_t* data;
  std::size_t width;
  std::ptrdiff_t row_step;
};

// Row i of `codes` = the vector of text i, of length 1, in steps of 1/127; zeros for a text without words.
// docs/FORMAT.md says what it is, bit for bit: two texts that share words and parts of words are close, and nothing is
// learnt or looked up. Texts are UTF-8; bytes that are none are as many U+FFFD. Letters of ASCII are made small ones
// here; whoever calls has done so with all others.
void hash_texts(const Strings& texts, const CodeRows& codes);

}  // namespace diskgnn
