#include "buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

namespace diskgnn {

PageMemory::PageMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, bytes, MADV_HUGEPAGE);  // rows are gathered at random: fewer TLB misses
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

PageMemory::~PageMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

PageMemory::PageMemory(PageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

BufferPool::BufferPool(std::size_t limit, std::size_t header_bytes, std::size_t rows_bytes)
    : limit_(limit), header_bytes_(header_bytes), rows_bytes_(rows_bytes) {}

std::shared_ptr<Buffer> BufferPool::acquire() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !free_.empty() || allocated_ < limit_ || starving_; });
  if (closed_) return nullptr;
  resting_ = false;
  std::unique_ptr<Buffer> buffer;
  if (!free_.empty()) {
    buffer = std::move(free_.back());
    free_.pop_back();
  } else {
    buffer = std::make_unique<Buffer>(header_bytes_, rows_bytes_);
    ++allocated_;
  }
  starving_ = false;
  // The deleter keeps the pool alive: a minibatch may outlive the loader.
  return {buffer.release(),
          [pool = shared_from_this()](Buffer* leased) { pool->give_back(std::unique_ptr<Buffer>(leased)); }};
}

void BufferPool::set_starving(bool starving) {
  {
    std::lock_guard lock(mutex_);
    starving_ = starving;
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
  starving_ = false;
}

void BufferPool::rest() {
  std::lock_guard lock(mutex_);
  resting_ = true;
  allocated_ -= std::erase_if(free_, [](const auto& buffer) { return !buffer->page_locked; });
}

std::vector<std::span<std::byte>> BufferPool::allocate_locked() {
  std::lock_guard lock(mutex_);
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
    if ((allocated_ > limit_ || resting_) && !buffer->page_locked) {
      --allocated_;
    } else {
      free_.push_back(std::move(buffer));
    }
  }
  changed_.notify_all();
}

}  // namespace diskgnn
