// Counter-based random numbers: every draw is a pure function of a key and a counter, so results do not depend on
// the order or the thread in which draws are made. SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <cstdint>

namespace diskgnn {

__extension__ using Uint128 = unsigned __int128;

constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// What mix64 makes x of.
constexpr std::uint64_t unmix64(std::uint64_t x) {
  x = (x ^ (x >> 31) ^ (x >> 62)) * 0x319642b2d24d8ec3;
  x = (x ^ (x >> 27) ^ (x >> 54)) * 0x96de1b173f119089;
  return (x ^ (x >> 30) ^ (x >> 60)) - 0x9e3779b97f4a7c15;
}
static_assert(unmix64(mix64(0)) == 0 && unmix64(mix64(0xfedcba9876543210)) == 0xfedcba9876543210);

constexpr std::uint64_t combine(std::uint64_t key, std::uint64_t word) { return mix64(key ^ mix64(word)); }

// Uniform in [0, bound) from 64 random bits (Lemire's multiply-shift; its bias is below bound / 2^64).
constexpr std::uint64_t below(std::uint64_t bits, std::uint64_t bound) {
  return static_cast<std::uint64_t>((static_cast<Uint128>(bits) * bound) >> 64);
}

}  // namespace diskgnn
