// Filling x from a memory that all rows lie in, or from a cache of some rows and a disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "loading/row_reader.h"

namespace diskgnn {

// destination[i] = source[nodes[i]] by `threads` threads. Where `source` is a memory map, each thread waits for the
// pages that it touches: many of them keep a disk busy. Throws std::out_of_range for a node that has no row.
template <typename Node>
void gather_rows(std::span<const std::byte> source, std::uint64_t row_bytes, std::span<const Node> nodes,
                 std::byte* destination, unsigned threads);

// Rows with a slot are copied from `cache` on a thread of their own while the others are read; then what is admitted
// is copied from the destination into the cache, in order. `slots` [U] are -1 for rows to read; `admissions` [A * 2]
// are (position, slot). Throws what RowReader::read throws, and std::out_of_range for a slot or position that is none.
template <typename Node>
ReadCounts gather_cached(RowReader& reader, std::span<const Node> nodes, std::span<const std::int32_t> slots,
                         std::span<const std::int32_t> admissions, std::span<std::byte> cache, std::byte* destination);

}  // namespace diskgnn
