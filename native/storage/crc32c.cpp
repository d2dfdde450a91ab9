#include "storage/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace diskgnn {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr auto kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}();

std::uint32_t by_table(const std::byte* data, std::size_t size, std::uint32_t crc) {
  for (std::size_t i = 0; i < size; ++i) {
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(data[i])) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* data, std::size_t size,
                                                               std::uint32_t crc) {
  std::uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) {
    std::uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  return by_table(data, size, static_cast<std::uint32_t>(wide));
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  crc = ~crc;
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~by_instruction(bytes.data(), bytes.size(), crc);
#endif
  return ~by_table(bytes.data(), bytes.size(), crc);
}

namespace {

// A linear map on CRC registers: column i is the image of bit i.
using BitMatrix = std::array<std::uint32_t, 32>;

std::uint32_t apply(const BitMatrix& matrix, std::uint32_t vector) {
  std::uint32_t image = 0;
  for (std::size_t bit = 0; vector != 0; vector >>= 1, ++bit) {
    if ((vector & 1) != 0) image ^= matrix[bit];
  }
  return image;
}

BitMatrix square(const BitMatrix& matrix) {
  BitMatrix result{};
  for (std::size_t bit = 0; bit < 32; ++bit) result[bit] = apply(matrix, matrix[bit]);
  return result;
}

}  // namespace

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) {
  BitMatrix advance{};  // by one zero bit, then squared to two, four, eight (one byte), ...
  advance[0] = kPolynomial;
  for (std::size_t bit = 1; bit < 32; ++bit) advance[bit] = std::uint32_t{1} << (bit - 1);
  for (int i = 0; i < 3; ++i) advance = square(advance);
  for (; bytes_b != 0; bytes_b >>= 1) {
    if ((bytes_b & 1) != 0) crc_a = apply(advance, crc_a);
    advance = square(advance);
  }
  return crc_a ^ crc_b;
}

}  // namespace diskgnn
