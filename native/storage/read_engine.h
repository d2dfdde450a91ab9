// Asynchronous reads: io_uring where it is compiled in and allowed, otherwise a pool of threads that call pread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "storage/direct_file.h"

namespace diskgnn {

enum class EngineKind { kAuto, kIoUring, kThreads };

// A file that ends before what was asked of it: not a disk that failed, which is a std::system_error.
struct TruncatedFile : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ReadRequest {
  std::uint64_t offset;
  std::span<std::byte> destination;
  std::uint64_t required_bytes;  // fewer are an error; the rest of `destination` may lie past the end of the file
  std::uint64_t tag;
};

// Reads from one file. Used by one thread; at most `depth` requests may be in flight.
class ReadEngine {
 public:
  virtual ~ReadEngine() = default;  // waits for what is in flight, so that destinations can be freed afterwards

  // Queues a request without blocking.
  virtual void submit(const ReadRequest& request) = 0;

  // Blocks until a request is complete and returns its tag. Throws std::system_error when the disk failed
  // several times over, TruncatedFile.
  virtual std::uint64_t wait() = 0;

  virtual const char* name() const = 0;
};

// kAuto falls back to threads when io_uring is refused; kIoUring throws std::system_error then. `registered` is
// memory that most destinations lie in (may be empty): it is pinned once instead of at every read where the limits
// allow it.
std::unique_ptr<ReadEngine> make_read_engine(EngineKind kind, const DirectFile& file, unsigned depth,
                                             std::span<std::byte> registered);

// Whether io_uring is compiled in.
bool has_io_uring();

// Why io_uring cannot be used here; empty when it can.
std::string io_uring_refusal();

struct ByteRange {
  std::uint64_t offset;
  std::uint64_t bytes;
};

// Reads `ranges` of `file` so that the first byte of range i lands at `destination[places[i]]`. Ranges are widened to
// the direct-I/O alignment: so `destination` is aligned to it and covers the widened ranges, and each place is as far
// from a multiple of it as its range's offset. Throws std::system_error,
// TruncatedFile.
void read_ranges(const DirectFile& file, EngineKind kind, std::span<const ByteRange> ranges,
                 std::span<const std::uint64_t> places, std::span<std::byte> destination);

// The byte at file offset `base + i`, which is aligned, lands at `destination[i]`. The engine, of depth kRangeDepth, is
// used again and again, and has nothing in flight.
// Small reads need many in flight for a disk to reach its rate, large ones need few: kRangeBytes is the limit then.
inline constexpr unsigned kRangeDepth = 256;
inline constexpr std::uint64_t kRangeBytes = 16 << 20;
void read_ranges(ReadEngine& engine, std::span<const ByteRange> ranges, std::uint64_t base,
                 std::span<std::byte> destination);

}  // namespace diskgnn
