#include "files/row_copy.h"

#include <cstring>
#include <stdexcept>

#include "files/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace diskgnn {
namespace {

#if defined(__x86_64__)
// Whole cache lines, to a place that begins one, in the widest stores that many processors have.
__attribute__((target("avx2"))) void stream_lines_avx2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kCacheLineBytes) {
    const auto* const source = reinterpret_cast<const __m256i*>(from + i);
    auto* const destination = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(destination, a);
    _mm256_stream_si256(destination + 1, b);
  }
}

void stream_lines_sse2(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += kCacheLineBytes) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + i);
    auto* const destination = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(destination, a);
    _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c);
    _mm_stream_si128(destination + 3, d);
  }
}

const auto stream_lines = has_avx2() ? stream_lines_avx2 : stream_lines_sse2;
#else
void stream_lines(std::byte* to, const std::byte* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace

void stream_row(std::byte* to, const std::byte* from, std::size_t row_bytes) {
  const std::size_t head = std::min(-reinterpret_cast<std::uintptr_t>(to) % kCacheLineBytes, row_bytes);
  if (head != 0) {
    std::memcpy(to, from, head);
    to += head, from += head, row_bytes -= head;
  }
  const std::size_t lines = row_bytes / kCacheLineBytes * kCacheLineBytes;
  stream_lines(to, from, lines);
  if (lines != row_bytes) std::memcpy(to + lines, from + lines, row_bytes - lines);
}

void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

void copy_rows_at(std::span<const std::byte> source, std::span<const std::int64_t> places, std::size_t row_bytes,
                  std::byte* to) {
  constexpr std::size_t kPrefetchedRows = 4;
  const bool streams = is_streamable(row_bytes);
  for (const std::int64_t place : places) {
    if (place < 0 || static_cast<std::uint64_t>(place) + row_bytes > source.size()) {
      throw std::out_of_range("a place where no row begins");
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i, to += row_bytes) {
    if (i + kPrefetchedRows < places.size()) {
      prefetch_lines(source.data() + places[i + kPrefetchedRows], row_bytes);
    }
    const std::byte* const row = source.data() + places[i];
    streams ? stream_row(to, row, row_bytes) : copy_row(to, row, row_bytes);
  }
  if (streams) finish_streaming();
}

}  // namespace diskgnn
