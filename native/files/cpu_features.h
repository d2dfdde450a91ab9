// What this processor can do beyond what each of its architecture can. Asked of the processor itself: not every
// compiler's run-time library answers __builtin_cpu_supports.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

namespace diskgnn {

inline bool has_sse42() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}

inline bool has_popcnt() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_POPCNT) != 0;
}

// Whether the system keeps registers of these kinds, by their bits in XCR0, when threads take turns.
inline bool keeps_registers(unsigned kinds) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
  unsigned kept = 0, upper = 0;
  asm volatile("xgetbv" : "=a"(kept), "=d"(upper) : "c"(0));
  return (kept & kinds) == kinds;
}

inline bool has_avx2() {
  constexpr unsigned kVectorRegisters = 0b110;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return keeps_registers(kVectorRegisters) && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & bit_AVX2) != 0;
}

// Those of 64 bits, of bytes and of vectors of 128 and 256 bits, too.
inline bool has_avx512() {
  constexpr unsigned kWideRegisters = 0b11100110, kWanted = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return keeps_registers(kWideRegisters) && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kWanted) == kWanted;
}

// Products of polynomials, four at a time.
inline bool has_wide_products() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c & bit_VPCLMULQDQ) != 0;
}

}  // namespace diskgnn
#endif
