#include "files/read_ranges.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace diskgnn {
namespace {

constexpr std::uint64_t kRangeChunkBytes = 1 << 20;

// `place_of(i)` is where the widened range i begins in `destination`.
template <typename PlaceOf>
void read_to(ReadEngine& engine, std::span<const ByteRange> ranges, const PlaceOf& place_of,
             std::span<std::byte> destination) {
  unsigned in_flight = 0;
  std::uint64_t in_flight_bytes = 0;
  const auto wait = [&] {
    in_flight_bytes -= engine.wait();
    --in_flight;
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::uint64_t end = ranges[i].offset + ranges[i].bytes;
    const std::uint64_t aligned_end = (end + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::uint64_t offset = ranges[i].offset / kDirectAlignment * kDirectAlignment, place = place_of(i);
    if (place > destination.size() || aligned_end - offset > destination.size() - place) {
      throw std::invalid_argument("a range does not fit the destination");
    }
    while (offset < end) {
      const std::uint64_t bytes = std::min(kRangeChunkBytes, aligned_end - offset);
      while (in_flight == kRangeDepth || (in_flight > 0 && in_flight_bytes + bytes > kRangeBytes)) wait();
      engine.submit({offset, destination.subspan(place, bytes), std::min(bytes, end - offset), bytes});
      ++in_flight;
      in_flight_bytes += bytes;
      offset += bytes;
      place += bytes;
    }
  }
  while (in_flight > 0) wait();
}

}  // namespace

void read_ranges(const DirectFile& file, EngineKind kind, std::span<const ByteRange> ranges,
                 std::span<const std::uint64_t> places, std::span<std::byte> destination) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (places[i] % kDirectAlignment != ranges[i].offset % kDirectAlignment) {
      throw std::invalid_argument("a range's place in the destination is not aligned as it is");
    }
  }
  const std::unique_ptr<ReadEngine> engine = make_read_engine(kind, file, kRangeDepth, {});
  const auto place_of = [&](std::size_t i) { return places[i] - places[i] % kDirectAlignment; };
  read_to(*engine, ranges, place_of, destination);
}

void read_ranges(ReadEngine& engine, std::span<const ByteRange> ranges, std::uint64_t base,
                 std::span<std::byte> destination) {
  // What lies before the base does not fit, wherever that wraps around to.
  const auto place_of = [&](std::size_t i) { return ranges[i].offset / kDirectAlignment * kDirectAlignment - base; };
  read_to(engine, ranges, place_of, destination);
}

}  // namespace diskgnn
