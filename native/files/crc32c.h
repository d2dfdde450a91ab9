// CRC-32C (Castagnoli, RFC 3720): the checksum of every file and extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Continues `crc` (0 to start with) over `bytes`, in the fastest of `crc32c_methods`.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc);

struct Crc32cMethod {
  const char* name;
  std::uint32_t (*advance)(const std::byte* data, std::size_t size, std::uint32_t crc);  // `crc` inverted
};

// What this processor can compute it by, the fastest first.
std::span<const Crc32cMethod> crc32c_methods();

// The checksum of A followed by B, from those of A and B and the length of B: files that are written out of order have
// their checksum put together from their parts' (the method is zlib's crc32_combine).
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b);

// What `bytes`, with `bytes_after` more behind them, add to the remainder of a whole that is otherwise zero. Remainders
// of parts are put together by exclusive or, in any order; the checksum of the whole is `crc32c_of_remainder`.
std::uint32_t crc32c_part(std::span<const std::byte> bytes, std::uint64_t bytes_after);
std::uint32_t crc32c_of_remainder(std::uint32_t remainder, std::uint64_t total_bytes);

// The same as crc32c, and the checksum of each `chunk_bytes` of `bytes` by itself into `chunks`; the last one may be
// shorter. There are as many as it takes.
std::uint32_t crc32c_chunks(std::span<const std::byte> bytes, std::size_t chunk_bytes, std::uint32_t crc,
                            std::span<std::uint32_t> chunks);

// The first i for which chunk number chunks[i] of `bytes` has another checksum than expected[i]; chunks.size() if there
// is none.
std::size_t first_damaged_chunk(std::span<const std::byte> bytes, std::size_t chunk_bytes,
                                std::span<const std::int64_t> chunks, std::span<const std::uint32_t> expected);

}  // namespace diskgnn
