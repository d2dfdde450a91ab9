#include "loading/chunk_stream.h"

#include <algorithm>
#include <utility>

namespace diskgnn {
namespace {

constexpr std::size_t kChunkBytes = 512 << 10;
constexpr unsigned kDepth = 16;                                    // chunks in flight
constexpr std::size_t kNumChunks = kReadAheadBytes / kChunkBytes;  // in flight or waiting to be taken

}  // namespace

ChunkStream::ChunkStream(const DirectFile& file, EngineKind engine, StageTrace& trace, PositionOf position_of)
    : file_(file),
      trace_(trace),
      position_of_(std::move(position_of)),
      memory_(kChunkBytes * kNumChunks),
      chunks_(kNumChunks),
      engine_(make_read_engine(engine, file_, kDepth, memory_.bytes())) {
  for (std::size_t i = 0; i < kNumChunks; ++i) {
    chunks_[i].memory = memory_.bytes().subspan(i * kChunkBytes, kChunkBytes);
  }
  reader_ = std::thread([this] { read_ahead(); });
}

ChunkStream::~ChunkStream() {
  stop();
  reader_.join();
  engine_.reset();  // waits for reads in flight before the memory goes
}

void ChunkStream::allow(std::span<const ByteRange> ranges) {
  {
    std::lock_guard lock(mutex_);
    for (const ByteRange& range : ranges) {
      if (!ranges_.empty() && ranges_.back().offset + ranges_.back().bytes == range.offset) {
        ranges_.back().bytes += range.bytes;  // neighbours share chunks
      } else if (range.bytes > 0) {
        ranges_.push_back(range);
      }
    }
  }
  freed_.notify_all();
}

void ChunkStream::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  freed_.notify_all();
}

ChunkStream::Reads ChunkStream::completed() const {
  std::lock_guard lock(mutex_);
  return completed_;
}

void ChunkStream::read_ahead() {
  unsigned in_flight = 0;
  const auto can_submit = [this] { return !ranges_.empty() && submitted_ - taken_ < kNumChunks; };
  try {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      while (in_flight < kDepth && can_submit()) {
        Chunk& chunk = chunks_[submitted_ % kNumChunks];
        ByteRange& range = ranges_.front();
        chunk.offset = range.offset;
        chunk.bytes = std::min(std::uint64_t{kChunkBytes}, range.bytes);
        chunk.submitted_ns = trace_.is_on() ? now_ns() : 0;
        engine_->submit({chunk.offset, chunk.memory.first(chunk.bytes), chunk.bytes, submitted_ % kNumChunks});
        ++submitted_;
        ++in_flight;
        range = {range.offset + chunk.bytes, range.bytes - chunk.bytes};
        if (range.bytes == 0) ranges_.pop_front();
      }
      if (in_flight == 0) {
        freed_.wait(lock, [&] { return stopping_ || can_submit(); });
        continue;
      }
      lock.unlock();
      const std::size_t completed = engine_->wait();
      --in_flight;
      trace_read(chunks_[completed]);
      lock.lock();
      chunks_[completed].ready = true;
      completed_.bytes += chunks_[completed].bytes;
      ++completed_.requests;
      ready_.notify_one();
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    ready_.notify_all();
  }
}

void ChunkStream::trace_read(const Chunk& chunk) {
  if (!trace_.is_on()) return;
  trace_.add({Stage::kRead, position_of_(chunk.offset), chunk.submitted_ns, now_ns()});
}

std::span<const std::byte> ChunkStream::peek() {
  std::unique_lock lock(mutex_);
  Chunk& chunk = chunks_[taken_ % kNumChunks];
  ready_.wait(lock, [&] { return chunk.ready || stopping_ || failure_ != nullptr; });
  if (chunk.ready) return chunk.memory.subspan(position_, chunk.bytes - position_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return {};
}

std::span<const std::byte> ChunkStream::peek_ready() {
  std::lock_guard lock(mutex_);
  const Chunk& chunk = chunks_[taken_ % kNumChunks];
  return chunk.ready ? chunk.memory.subspan(position_, chunk.bytes - position_) : std::span<const std::byte>();
}

std::vector<std::span<const std::byte>> ChunkStream::peek_all_ready(std::size_t limit) {
  std::vector<std::span<const std::byte>> pieces;
  std::lock_guard lock(mutex_);
  while (pieces.size() < std::min(limit, kNumChunks)) {
    const Chunk& chunk = chunks_[(taken_ + pieces.size()) % kNumChunks];
    if (!chunk.ready) break;
    const std::size_t read = pieces.empty() ? position_ : 0;
    pieces.push_back(chunk.memory.subspan(read, chunk.bytes - read));
  }
  return pieces;
}

void ChunkStream::consume(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  Chunk& chunk = chunks_[taken_ % kNumChunks];
  position_ += bytes;
  if (position_ == chunk.bytes) {
    chunk.ready = false;
    position_ = 0;
    ++taken_;
    freed_.notify_one();
  }
}

}  // namespace diskgnn
