// Least-significant-digit radix sort of records by an unsigned key: what the planner sorts is too long for
// comparisons.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace diskgnn {

// Sorts `records` by `key(record)` (stable), whose values are below 2^key_bits. `scratch` is overwritten.
template <typename Record, typename Key>
void radix_sort(std::vector<Record>& records, std::vector<Record>& scratch, int key_bits, Key key) {
  constexpr int kDigitBits = 11;
  constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
  scratch.resize(records.size());
  for (int shift = 0; shift < key_bits; shift += kDigitBits) {
    std::array<std::size_t, kDigits> offsets{};
    for (const Record& record : records) ++offsets[(key(record) >> shift) & (kDigits - 1)];
    std::size_t total = 0;
    for (std::size_t& offset : offsets) {
      const std::size_t count = offset;
      offset = total;
      total += count;
    }
    for (const Record& record : records) scratch[offsets[(key(record) >> shift) & (kDigits - 1)]++] = record;
    records.swap(scratch);
  }
}

}  // namespace diskgnn
