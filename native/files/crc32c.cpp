#include "files/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "files/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
// GCC counts the instruction to SSE 4.2, clang has a name of its own for it.
#if defined(__clang__)
#define DISKGNN_CRC32 "sse4.2,crc32"
#else
#define DISKGNN_CRC32 "sse4.2"
#endif
#define DISKGNN_WITH_CRC32 __attribute__((target(DISKGNN_CRC32)))
#define DISKGNN_WITH_PRODUCTS __attribute__((target("avx512f,vpclmulqdq," DISKGNN_CRC32)))
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

// A linear map on CRC registers: column i is the image of bit i.
using BitMatrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t apply(const BitMatrix& matrix, std::uint32_t vector) {
  std::uint32_t image = 0;
  for (std::size_t bit = 0; vector != 0; vector >>= 1, ++bit) {
    if ((vector & 1) != 0) image ^= matrix[bit];
  }
  return image;
}

constexpr BitMatrix square(const BitMatrix& matrix) {
  BitMatrix result{};
  for (std::size_t bit = 0; bit < 32; ++bit) result[bit] = apply(matrix, matrix[bit]);
  return result;
}

// What a zero byte does to a register.
constexpr BitMatrix kZeroByte = [] {
  BitMatrix advance{};  // by one zero bit, then squared to two, four, eight
  advance[0] = kPolynomial;
  for (std::size_t bit = 1; bit < 32; ++bit) advance[bit] = std::uint32_t{1} << (bit - 1);
  for (int i = 0; i < 3; ++i) advance = square(advance);
  return advance;
}();

// What 2^i zero bytes do, for each i.
constexpr auto kZeroBytes = [] {
  std::array<BitMatrix, 64> advances{};
  advances[0] = kZeroByte;
  for (std::size_t i = 1; i < advances.size(); ++i) advances[i] = square(advances[i - 1]);
  return advances;
}();

#if defined(__x86_64__)
// What 2^log2_bytes zero bytes do to a register, looked up by its bytes.
class ZerosTable {
 public:
  constexpr explicit ZerosTable(int log2_bytes) {
    const BitMatrix& advance = kZeroBytes[static_cast<std::size_t>(log2_bytes)];
    for (std::size_t byte = 0; byte < 4; ++byte) {
      for (std::uint32_t value = 0; value < 256; ++value) images_[byte][value] = apply(advance, value << (8 * byte));
    }
  }

  std::uint32_t operator()(std::uint64_t crc) const {
    return images_[0][crc & 0xff] ^ images_[1][crc >> 8 & 0xff] ^ images_[2][crc >> 16 & 0xff] ^
           images_[3][crc >> 24 & 0xff];
  }

 private:
  std::array<std::array<std::uint32_t, 256>, 4> images_{};
};

std::uint64_t load_word(const std::byte* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// The instruction takes three cycles and one can start at each: so three neighbouring stretches are worked on at once,
// and put together as `crc32c_combine` does.
template <int log2_stretch_bytes>
DISKGNN_WITH_CRC32 void by_three(const std::byte*& data, std::size_t& size, std::uint64_t& crc) {
  static constexpr ZerosTable kZeros{log2_stretch_bytes};
  constexpr std::size_t kStretch = std::size_t{1} << log2_stretch_bytes;
  for (; size >= 3 * kStretch; size -= 3 * kStretch, data += 3 * kStretch) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStretch; i += 8) {
      crc = _mm_crc32_u64(crc, load_word(data + i));
      second = _mm_crc32_u64(second, load_word(data + kStretch + i));
      third = _mm_crc32_u64(third, load_word(data + 2 * kStretch + i));
    }
    crc = kZeros(kZeros(crc) ^ second) ^ third;
  }
}

DISKGNN_WITH_CRC32 std::uint32_t by_instruction(const std::byte* data, std::size_t size, std::uint32_t crc) {
  std::uint64_t wide = crc;
  by_three<13>(data, size, wide);
  by_three<8>(data, size, wide);
  for (; size >= 8; size -= 8, data += 8) wide = _mm_crc32_u64(wide, load_word(data));
  return by_table(data, size, static_cast<std::uint32_t>(wide));
}

// x^exponent modulo the polynomial.
constexpr std::uint32_t power_of_x(std::size_t exponent) {
  std::uint32_t power = std::uint32_t{1} << 31;
  for (; exponent > 0; --exponent) power = (power >> 1) ^ ((power & 1) != 0 ? kPolynomial : 0);
  return power;
}

// What moves 128 bits forward by `bits`: the first 64 lie 64 further ahead. A product of reflected polynomials of 64
// bits, of which this one has 32, is 33 bits ahead by itself.
template <std::size_t bits>
DISKGNN_WITH_PRODUCTS __m512i advance_by() {
  static constexpr std::uint32_t kFirst = power_of_x(bits + 64 - 33), kSecond = power_of_x(bits - 33);
  return _mm512_set_epi64(kSecond, kFirst, kSecond, kFirst, kSecond, kFirst, kSecond, kFirst);
}

// `bytes` moved forward, added to those that lie there.
DISKGNN_WITH_PRODUCTS __m512i fold(__m512i bytes, __m512i advance, __m512i there) {
  constexpr int kSum = 0x96;  // exclusive or of all three
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(bytes, advance, 0x00),
                                   _mm512_clmulepi64_epi128(bytes, advance, 0x11), there, kSum);
}

// Blocks of 256 bytes are folded into the next one, and the last into its last 64 bytes, which have the same remainder
// as all of them (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", 2009).
DISKGNN_WITH_PRODUCTS std::uint32_t by_products(const std::byte* data, std::size_t size, std::uint32_t crc) {
  constexpr std::size_t kLane = 64, kBlock = 4 * kLane;
  if (size < kBlock) return by_instruction(data, size, crc);
  __m512i a =
      _mm512_xor_si512(_mm512_loadu_si512(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  __m512i b = _mm512_loadu_si512(data + kLane), c = _mm512_loadu_si512(data + 2 * kLane),
          d = _mm512_loadu_si512(data + 3 * kLane);
  const __m512i by_block = advance_by<8 * kBlock>(), by_lane = advance_by<8 * kLane>();
  for (data += kBlock, size -= kBlock; size >= kBlock; data += kBlock, size -= kBlock) {
    a = fold(a, by_block, _mm512_loadu_si512(data));
    b = fold(b, by_block, _mm512_loadu_si512(data + kLane));
    c = fold(c, by_block, _mm512_loadu_si512(data + 2 * kLane));
    d = fold(d, by_block, _mm512_loadu_si512(data + 3 * kLane));
  }
  std::array<std::byte, kLane> folded;
  _mm512_storeu_si512(folded.data(), fold(fold(fold(a, by_lane, b), by_lane, c), by_lane, d));
  return by_instruction(data, size, by_instruction(folded.data(), folded.size(), 0));
}
#endif

}  // namespace

std::span<const Crc32cMethod> crc32c_methods() {
  static const std::vector<Crc32cMethod> methods = [] {
    std::vector<Crc32cMethod> found;
#if defined(__x86_64__)
    if (has_sse42() && has_wide_products()) found.push_back({"products", by_products});
    if (has_sse42()) found.push_back({"instruction", by_instruction});
#endif
    found.push_back({"table", by_table});
    return found;
  }();
  return methods;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  static const auto fastest = crc32c_methods().front().advance;
  return ~fastest(bytes.data(), bytes.size(), ~crc);
}

std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b) {
  for (std::size_t bit = 0; bytes_b != 0; bytes_b >>= 1, ++bit) {
    if ((bytes_b & 1) != 0) crc_a = apply(kZeroBytes[bit], crc_a);
  }
  return crc_a ^ crc_b;
}

std::uint32_t crc32c_part(std::span<const std::byte> bytes, std::uint64_t bytes_after) {
  return crc32c_combine(~crc32c(bytes, ~std::uint32_t{0}), 0, bytes_after);  // the register starts at 0: linear
}

std::uint32_t crc32c_of_remainder(std::uint32_t remainder, std::uint64_t total_bytes) {
  return ~(crc32c_combine(~std::uint32_t{0}, 0, total_bytes) ^ remainder);
}

std::uint32_t crc32c_chunks(std::span<const std::byte> bytes, std::size_t chunk_bytes, std::uint32_t crc,
                            std::span<std::uint32_t> chunks) {
  for (std::uint32_t& chunk : chunks) {
    const std::span<const std::byte> part = bytes.first(std::min(chunk_bytes, bytes.size()));
    chunk = crc32c(part, 0);
    crc = crc32c_combine(crc, chunk, part.size());
    bytes = bytes.subspan(part.size());
  }
  return crc;
}

std::size_t first_damaged_chunk(std::span<const std::byte> bytes, std::size_t chunk_bytes,
                                std::span<const std::int64_t> chunks, std::span<const std::uint32_t> expected) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::span<const std::byte> rest = bytes.subspan(static_cast<std::size_t>(chunks[i]) * chunk_bytes);
    if (crc32c(rest.first(std::min(chunk_bytes, rest.size())), 0) != expected[i]) return i;
  }
  return chunks.size();
}

}  // namespace diskgnn
