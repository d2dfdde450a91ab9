// Many ranges of one file, read at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "files/read_engine.h"

namespace diskgnn {

struct ByteRange {
  std::uint64_t offset;
  std::uint64_t bytes;
};

// Reads `ranges` of `file` so that the first byte of range i lands at `destination[places[i]]`. Ranges are widened to
// the direct-I/O alignment: so `destination` is aligned to it and covers the widened ranges, and each place is as far
// from a multiple of it as its range's offset. Throws std::system_error, TruncatedFile.
void read_ranges(const DirectFile& file, EngineKind kind, std::span<const ByteRange> ranges,
                 std::span<const std::uint64_t> places, std::span<std::byte> destination);

// Small reads need many in flight for a disk to reach its rate, large ones need few: kRangeBytes is the limit then.
inline constexpr unsigned kRangeDepth = 256;
inline constexpr std::uint64_t kRangeBytes = 16 << 20;

// The byte at file offset `base + i`, which is aligned, lands at `destination[i]`. The engine, of depth kRangeDepth, is
// used again and again, and has nothing in flight.
void read_ranges(ReadEngine& engine, std::span<const ByteRange> ranges, std::uint64_t base,
                 std::span<std::byte> destination);

}  // namespace diskgnn
