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

void copy_rows_to(std::span<const std::byte> rows, std::size_t row_bytes, std::span<const std::int64_t> places,
                  std::span<const std::span<std::byte>> segments, std::size_t segment_bytes) {
  constexpr std::size_t kPrefetchedRows = 4;
  constexpr std::size_t kStreamedBytes = 256;  // with lines at its ends that are prefetched
  for (const std::int64_t place : places) {
    if (place < 0) continue;
    const std::uint64_t number = static_cast<std::uint64_t>(place) / segment_bytes;
    const std::uint64_t end = static_cast<std::uint64_t>(place) % segment_bytes + row_bytes;
    if (number >= segments.size() || end > segments[number].size()) {
      throw std::out_of_range("a place where no row fits");
    }
  }
  const auto target = [&](std::int64_t place) {
    const auto at = static_cast<std::uint64_t>(place);
    return segments[at / segment_bytes].data() + at % segment_bytes;
  };
  const bool streams = is_streamable(row_bytes) || row_bytes >= kStreamedBytes;
  const std::byte* row = rows.data();
  for (std::size_t i = 0; i < places.size(); ++i, row += row_bytes) {
    if (i + kPrefetchedRows < places.size() && places[i + kPrefetchedRows] >= 0) {
      // Lines that are written in part are read first; those that are streamed are not.
      const std::byte* const next = target(places[i + kPrefetchedRows]);
      if (!streams || reinterpret_cast<std::uintptr_t>(next) % kCacheLineBytes != 0) __builtin_prefetch(next, 1);
      if (reinterpret_cast<std::uintptr_t>(next + row_bytes) % kCacheLineBytes != 0) {
        __builtin_prefetch(next + row_bytes, 1);
      }
    }
    if (places[i] < 0) continue;
    std::byte* const to = target(places[i]);
    streams ? stream_row(to, row, row_bytes) : copy_row(to, row, row_bytes);
  }
  if (streams) finish_streaming();
}

}  // namespace diskgnn
