// CRC-32C (Castagnoli, RFC 3720): the checksum of every file and extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace diskgnn {

// Continues `crc` (0 to start with) over `bytes`; uses the CPU's instruction where it has one.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc);

}  // namespace diskgnn
