// Moves the rows of one window of the feature file into every extent that needs them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "packing/page_writer.h"

namespace diskgnn {

// The extents of one file, as far as the rows of one row set are concerned. T extents, no two of which share a page.
template <typename Node>
struct ExtentRows {
  std::shared_ptr<const OutputFile> file;
  std::span<const Node> nodes;            // the rows of all extents, extent after extent, ascending in each
  std::span<const std::int64_t> bounds;   // [T+1] extent t's rows are nodes[bounds[t], bounds[t+1])
  std::span<const std::int64_t> offsets;  // [T] where row 0 of each extent lies in the file
  std::span<std::int64_t> cursors;        // [T] next row to write, an index into `nodes`; advanced
  std::span<std::uint32_t> checksums;     // [T] CRC-32C of the rows written so far; continued
  std::span<std::byte> tails;             // [T * kDirectAlignment] the pages that are not full yet; see PageAppender
  std::span<const std::int64_t> padding_bytes;  // [T] zeros behind the last row, less than a page
  std::size_t row_bytes;

  // Where what is written of an extent ends in the file.
  std::int64_t written_end(std::size_t t) const {
    const std::int64_t end = offsets[t] + (cursors[t] - bounds[t]) * static_cast<std::int64_t>(row_bytes);
    return cursors[t] == bounds[t + 1] ? end + padding_bytes[t] : end;
  }
};

// Writes what comes before the rows of an extent: `header`, and zeros behind it, from the page boundary `offset` on.
// What does not fill a page stays in `tail` [kDirectAlignment], and is written, too, see PageAppender. Returns the
// CRC-32C of `header`.
std::uint32_t start_extent(PageWriter& writer, std::shared_ptr<const OutputFile> file, std::int64_t offset,
                           std::span<const std::byte> header, std::size_t padding_bytes, std::span<std::byte> tail);

// Rows in memory, in runs of neighbouring nodes.
struct RowWindow {
  std::span<const std::byte> bytes;
  std::span<const std::int64_t> run_nodes;   // [R] the first node of each run, ascending
  std::span<const std::int64_t> run_places;  // [R] where its row begins in `bytes`
  std::int64_t last_node;                    // no run reaches further
};

// Appends the rows of `window` to the extents, and zeros after the last row; windows come in ascending order. Threads
// share the extents. Returns when the window is no longer needed, though not all is written: see PageWriter. Throws
// std::system_error when a write fails.
template <typename Node>
void pack_window(PageWriter& writer, const ExtentRows<Node>& extents, const RowWindow& window, unsigned num_threads);

// Writes the page of each extent that its rows have begun and not filled, see PageAppender. What throws is as above.
template <typename Node>
void flush_tails(PageWriter& writer, const ExtentRows<Node>& extents);

// Writes the row that begins at `window[sources[i]]` as row `places[i]` of the file's `num_rows` rows, which start at
// `offset`. `places` ascend: neighbours are written together. Returns what the rows add to the file's remainder: rows
// may be written in any order, and the remainder is the exclusive or of what all parts add (`crc32c_part`). Throws
// std::system_error when a write fails.
std::uint32_t scatter_rows(int descriptor, std::int64_t offset, std::int64_t num_rows,
                           std::span<const std::int64_t> places, std::span<const std::int64_t> sources,
                           std::span<const std::byte> window, std::size_t row_bytes, unsigned num_threads);

}  // namespace diskgnn
