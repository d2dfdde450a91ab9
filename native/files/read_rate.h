// How fast a file can be read: for `diskgnn doctor` and tools/measure_disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "files/direct_file.h"
#include "files/read_engine.h"

namespace diskgnn {

struct ReadRate {
  std::string engine;
  bool direct;  // false: through the page cache
  std::uint64_t read_bytes;
  double seconds;
};

// Reads `bytes_each` at each of `offsets`, in that order, `depth` at a time, and stops early after `max_seconds`.
// Offsets and `bytes_each` are multiples of kDirectAlignment. Throws std::system_error.
ReadRate measure_reads(const DirectFile& file, EngineKind kind, std::span<const std::uint64_t> offsets,
                       std::uint64_t bytes_each, unsigned depth, double max_seconds);

}  // namespace diskgnn
