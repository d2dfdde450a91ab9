// Copying rows between places in memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace diskgnn {

inline constexpr std::size_t kCacheLineBytes = 64;

// Asks for the first cache lines of a row that is copied soon; the hardware fetches the rest by itself.
inline void prefetch_row(const std::byte* row, std::size_t row_bytes) {
  __builtin_prefetch(row);
  if (row_bytes > kCacheLineBytes) __builtin_prefetch(row + kCacheLineBytes);
}

// The same for up to 1 KiB: before a row of 8 lines the hardware has no time to notice what is going on.
inline void prefetch_lines(const std::byte* row, std::size_t row_bytes) {
  const std::size_t bytes = std::min<std::size_t>(row_bytes, 1024);
  for (std::size_t offset = 0; offset < bytes; offset += kCacheLineBytes) __builtin_prefetch(row + offset);
}

inline void copy_row(std::byte* to, const std::byte* from, std::size_t row_bytes) { std::memcpy(to, from, row_bytes); }

// Whether rows of this width, back to back, consist mostly of whole cache lines: then `stream_row` is the faster copy.
inline bool is_streamable(std::size_t row_bytes) { return row_bytes % kCacheLineBytes == 0 || row_bytes >= 1024; }

// Copies a row that nobody reads soon. Whole cache lines of the destination are written past the cache, which neither
// reads them first nor evicts others for them. Before another thread may look, the writer calls `finish_streaming`.
inline void stream_row(std::byte* to, const std::byte* from, std::size_t row_bytes) {
#if defined(__SSE2__)
  const std::size_t head = std::min(-reinterpret_cast<std::uintptr_t>(to) % kCacheLineBytes, row_bytes);
  if (head != 0) {
    std::memcpy(to, from, head);
    to += head, from += head, row_bytes -= head;
  }
  for (; row_bytes >= kCacheLineBytes; to += kCacheLineBytes, from += kCacheLineBytes, row_bytes -= kCacheLineBytes) {
    const auto* const source = reinterpret_cast<const __m128i*>(from);
    auto* const destination = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(destination, a);
    _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c);
    _mm_stream_si128(destination + 3, d);
  }
#endif
  if (row_bytes != 0) std::memcpy(to, from, row_bytes);
}

inline void finish_streaming() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace diskgnn
