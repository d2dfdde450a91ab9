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

// The system has to keep the wide registers, too.
inline bool has_avx2() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
  unsigned kept = 0, upper = 0;
  asm volatile("xgetbv" : "=a"(kept), "=d"(upper) : "c"(0));
  constexpr unsigned kVectorRegisters = 0b110;
  return (kept & kVectorRegisters) == kVectorRegisters && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (b & bit_AVX2) != 0;
}

}  // namespace diskgnn
#endif
