// Parts of columns of a graph in memory: what is read at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "files/page_memory.h"
#include "files/read_ranges.h"
#include "sampling/graph_files.h"

namespace diskgnn {

// Gaps up to this size are read along: random reads of 64 KiB reach a disk's sequential rate.
constexpr std::uint64_t kGapBytes = 32 << 10;

// Appends [begin, end) to ascending `ranges`, one with the last of them if the gap is at most `gap`.
inline void append_range(std::vector<ByteRange>& ranges, std::uint64_t begin, std::uint64_t end, std::uint64_t gap) {
  if (!ranges.empty() && begin <= ranges.back().offset + ranges.back().bytes + gap) {
    ranges.back().bytes = std::max(ranges.back().offset + ranges.back().bytes, end) - ranges.back().offset;
  } else {
    ranges.push_back({begin, end - begin});
  }
}

inline std::uint64_t align_down(std::uint64_t offset) { return offset / kDirectAlignment * kDirectAlignment; }

// Part of a column of edges in memory.
class ColumnWindow {
 public:
  ColumnWindow(const Column& column, EngineKind engine, std::int64_t num_edges)
      : column_(column),
        memory_(static_cast<std::size_t>(num_edges) * column.item_bytes + 2 * kDirectAlignment),
        engine_(make_read_engine(engine, column.file, kRangeDepth, memory_.bytes())) {}

  // Reads [offset, offset + bytes) of each of `edges`, counted in edges; the first is the window's first edge. Bytes.
  std::uint64_t read(std::span<const ByteRange> edges) {
    ranges_.clear();
    std::uint64_t bytes = 0;
    for (const ByteRange& range : edges) {
      ranges_.push_back({column_.offset + range.offset * column_.item_bytes, range.bytes * column_.item_bytes});
      bytes += ranges_.back().bytes;
    }
    base_ = align_down(ranges_.front().offset);
    read_ranges(*engine_, ranges_, base_, memory_.bytes());
    return bytes;
  }

  // Where the value of `edge` is; only those of the ranges are.
  template <typename Value>
  const Value* at(std::int64_t edge) const {
    const std::uint64_t offset = column_.offset + static_cast<std::uint64_t>(edge) * sizeof(Value);
    return reinterpret_cast<const Value*>(memory_.bytes().data() + (offset - base_));
  }

 private:
  const Column& column_;
  PageMemory memory_;  // outlives the engine, which waits for what is in flight
  std::unique_ptr<ReadEngine> engine_;
  std::vector<ByteRange> ranges_;
  std::uint64_t base_ = 0;
};

}  // namespace diskgnn
