#include "loading/buffer_pool.h"

#include <algorithm>
#include <utility>

namespace diskgnn {

BufferPool::BufferPool(std::size_t limit, std::size_t header_bytes, std::size_t rows_bytes)
    : limit_(limit), header_bytes_(header_bytes), rows_bytes_(rows_bytes) {}

std::shared_ptr<Buffer> BufferPool::acquire() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !free_.empty() || allocated_ < limit_ + kept_; });
  if (closed_) return nullptr;
  releasing_ = freeing_ = false;
  std::unique_ptr<Buffer> buffer;
  if (!free_.empty()) {
    buffer = std::move(free_.back());
    free_.pop_back();
  } else {
    buffer = std::make_unique<Buffer>(header_bytes_, rows_bytes_);
    ++allocated_;
  }
  // The deleter keeps the pool alive: a minibatch may outlive the loader.
  return {buffer.release(),
          [pool = shared_from_this()](Buffer* leased) { pool->give_back(std::unique_ptr<Buffer>(leased)); }};
}

void BufferPool::hand_out(Buffer& buffer) {
  std::lock_guard lock(mutex_);
  buffer.with_user = true;
  ++with_user_;
}

void BufferPool::count_kept() {
  {
    std::lock_guard lock(mutex_);
    // Page-locked ones are held until they are copied to the device. Others would be copied more slowly: they come only
    // when there is nothing else to go on with.
    const std::size_t foreseen = locked_ ? limit_ - 1 : 1;
    kept_ = with_user_ > foreseen ? with_user_ - foreseen : 0;
  }
  changed_.notify_all();
}

void BufferPool::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void BufferPool::reopen() {
  std::lock_guard lock(mutex_);
  closed_ = false;
}

void BufferPool::forget(Buffer& buffer) {
  if (!buffer.page_locked) buffer.forget();
}

void BufferPool::release_idle() {
  std::lock_guard lock(mutex_);
  releasing_ = true;
  for (const auto& buffer : free_) forget(*buffer);
}

void BufferPool::free_idle() {
  std::lock_guard lock(mutex_);
  freeing_ = true;
  free_all_but(0);
}

// Under the lock: frees buffers that are not leased until `count` are left, but not those that are page-locked.
void BufferPool::free_all_but(std::size_t count) {
  while (free_.size() > count) {
    const auto found = std::ranges::find_if(free_, [](const auto& kept) { return !kept->page_locked; });
    if (found == free_.end()) return;
    free_.erase(found);
    --allocated_;
  }
}

std::vector<std::span<std::byte>> BufferPool::allocate_locked() {
  std::lock_guard lock(mutex_);
  locked_ = true;
  std::vector<std::span<std::byte>> regions;
  for (; allocated_ < limit_; ++allocated_) {
    free_.push_back(std::make_unique<Buffer>(header_bytes_, rows_bytes_));
    free_.back()->page_locked = true;
    regions.push_back(free_.back()->memory());
  }
  return regions;
}

void BufferPool::give_back(std::unique_ptr<Buffer> buffer) {
  // After a fork the pool's waiters are in the parent, where they hold the lock or are in the midst of waking up.
  if (owner_ != getpid()) return;
  {
    std::lock_guard lock(mutex_);
    if (buffer->with_user) --with_user_;
    buffer->with_user = false;
    if (releasing_) forget(*buffer);
    free_.push_back(std::move(buffer));
    free_all_but(freeing_ ? 0 : limit_);
  }
  changed_.notify_all();
}

}  // namespace diskgnn
