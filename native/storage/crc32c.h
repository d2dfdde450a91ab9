// CRC-32C (Castagnoli, RFC 3720): the checksum of every file and extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Continues `crc` (0 to start with) over `bytes`; uses the CPU's instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc);

// The checksum of A followed by B, from those of A and B and the length of B: files that are written out of order have
// their checksum put together from their parts' (the method is zlib's crc32_combine).
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b);

}  // namespace diskgnn
