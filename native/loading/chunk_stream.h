// Ranges of a file as an endless stream of bytes: read ahead in chunks by a thread of its own, taken in order by
// another.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "files/byte_source.h"
#include "files/page_memory.h"
#include "files/read_ranges.h"
#include "loading/stage_clock.h"

namespace diskgnn {

// What a stream has in flight or waiting to be taken.
inline constexpr std::size_t kReadAheadBytes = 48 << 20;

class ChunkStream {
 public:
  // The position of the minibatch that a byte of the file, at this offset, belongs to. Asked by the reader's thread.
  using PositionOf = std::function<std::int64_t(std::uint64_t offset)>;

  // Streams the ranges of `source` that `allow` names. `trace` gets every read, from submission to completion.
  ChunkStream(const ByteSource& source, StageTrace& trace, PositionOf position_of);
  ~ChunkStream();  // stops and joins

  // Appends ranges to the stream; offsets and lengths are multiples of kDirectAlignment.
  void allow(std::span<const ByteRange> ranges);

  // The unread bytes of the current chunk, waiting for it if need be. Empty when the stream was stopped.
  // Throws what the reader threw.
  std::span<const std::byte> peek();

  // The same, but empty when there is nothing yet.
  std::span<const std::byte> peek_ready();

  // The unread bytes of the chunks that are there, in order, those of up to `limit` chunks.
  std::vector<std::span<const std::byte>> peek_all_ready(std::size_t limit);

  // Takes `bytes` of what `peek` returned; a chunk that is used up is read into again.
  void consume(std::size_t bytes);

  // Wakes a waiting `peek`.
  void stop();

  struct Reads {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
  };
  Reads completed() const;

 private:
  struct Chunk {
    std::span<std::byte> memory;
    std::uint64_t offset = 0;  // in the file
    std::size_t bytes = 0;
    std::int64_t submitted_ns = 0;  // while tracing
    bool ready = false;
  };

  void read_ahead();
  void trace_read(const Chunk& chunk);

  const std::size_t chunk_bytes_;
  const unsigned depth_;  // chunks in flight
  StageTrace& trace_;
  const PositionOf position_of_;
  PageMemory memory_;
  std::vector<Chunk> chunks_;
  std::unique_ptr<ReadEngine> engine_;

  mutable std::mutex mutex_;
  std::condition_variable ready_, freed_;
  std::deque<ByteRange> ranges_;  // still to be submitted
  std::size_t submitted_ = 0;     // chunks, counted from the start
  std::size_t taken_ = 0;         // chunks used up
  std::size_t position_ = 0;      // in the current chunk
  Reads completed_;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread reader_;
};

}  // namespace diskgnn
