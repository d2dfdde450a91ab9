// Asynchronous reads: io_uring where it is compiled in and allowed, otherwise a pool of threads that call pread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "files/direct_file.h"

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

}  // namespace diskgnn
