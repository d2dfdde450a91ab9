#include "loading/chunk_stream.h"

#include <algorithm>
#include <utility>

namespace diskgnn {
namespace {

// In flight or waiting to be taken: no more than the source has.
std::size_t chunks_for(const ByteSource& source) {
  const std::uint64_t chunk_bytes = source.chunk_bytes();
  return std::clamp<std::uint64_t>((source.size_bytes() + chunk_bytes - 1) / chunk_bytes, 1,
                                   kReadAheadBytes / chunk_bytes);
}

}  // namespace

ChunkStream::ChunkStream(const ByteSource& source, StageTrace& trace, PositionOf position_of)
    : chunk_bytes_(source.chunk_bytes()),
      depth_(source.depth()),
      trace_(trace),
      position_of_(std::move(position_of)),
      memory_(chunks_for(source) * chunk_bytes_),
      chunks_(chunks_for(source)),
      engine_(source.engine(memory_.bytes())) {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    chunks_[i].memory = memory_.bytes().subspan(i * chunk_bytes_, chunk_bytes_);
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
  const auto can_submit = [this] { return !ranges_.empty() && submitted_ - taken_ < chunks_.size(); };
  try {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      while (in_flight < depth_ && can_submit()) {
        Chunk& chunk = chunks_[submitted_ % chunks_.size()];
        ByteRange& range = ranges_.front();
        chunk.offset = range.offset;
        chunk.bytes = std::min(std::uint64_t{chunk_bytes_}, range.bytes);
        chunk.submitted_ns = trace_.is_on() ? now_ns() : 0;
        engine_->submit({chunk.offset, chunk.memory.first(chunk.bytes), chunk.bytes, submitted_ % chunks_.size()});
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
  Chunk& chunk = chunks_[taken_ % chunks_.size()];
  ready_.wait(lock, [&] { return chunk.ready || stopping_ || failure_ != nullptr; });
  if (chunk.ready) return chunk.memory.subspan(position_, chunk.bytes - position_);
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return {};
}

std::span<const std::byte> ChunkStream::peek_ready() {
  std::lock_guard lock(mutex_);
  const Chunk& chunk = chunks_[taken_ % chunks_.size()];
  return chunk.ready ? chunk.memory.subspan(position_, chunk.bytes - position_) : std::span<const std::byte>();
}

std::vector<std::span<const std::byte>> ChunkStream::peek_all_ready(std::size_t limit) {
  std::vector<std::span<const std::byte>> pieces;
  std::lock_guard lock(mutex_);
  while (pieces.size() < std::min(limit, chunks_.size())) {
    const Chunk& chunk = chunks_[(taken_ + pieces.size()) % chunks_.size()];
    if (!chunk.ready) break;
    const std::size_t read = pieces.empty() ? position_ : 0;
    pieces.push_back(chunk.memory.subspan(read, chunk.bytes - read));
  }
  return pieces;
}

void ChunkStream::consume(std::size_t bytes) {
  std::lock_guard lock(mutex_);
  Chunk& chunk = chunks_[taken_ % chunks_.size()];
  position_ += bytes;
  if (position_ == chunk.bytes) {
    chunk.ready = false;
    position_ = 0;
    ++taken_;
    freed_.notify_one();
  }
}

}  // namespace diskgnn
