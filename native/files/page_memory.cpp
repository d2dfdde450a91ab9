#include "files/page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <utility>

namespace diskgnn {
namespace {

// What is taken for `bytes`: large blocks come in eight sizes from one power of two to the next, so that one that was
// given back fits whoever needs nearly as much. Pages that nobody touches cost nothing.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes < kLeastKeptBytes) return bytes;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

std::byte* map_pages(std::size_t bytes, Content content) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (content == Content::kSparse ? MAP_NORESERVE : 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);  // rows are gathered at random: fewer TLB misses
#endif
  return static_cast<std::byte*>(memory);
}

void forget_pages(std::span<std::byte> pages) {
  if (madvise(pages.data(), pages.size(), MADV_FREE) == 0) return;
  madvise(pages.data(), pages.size(), MADV_DONTNEED);  // before Linux 4.5
}

// At another place perhaps; nullptr if the system cannot. The pages that are there go along.
std::byte* grow(std::span<std::byte> block, std::size_t bytes) {
  if (block.size() == bytes) return block.data();
#ifdef MREMAP_MAYMOVE
  if (void* memory = mremap(block.data(), block.size(), bytes, MREMAP_MAYMOVE); memory != MAP_FAILED) {
    return static_cast<std::byte*>(memory);
  }
#endif
  return nullptr;
}

// Blocks that were given back, the latest last.
class Shelf {
 public:
  // One of this size, or else the largest that is smaller, grown; nullptr if there is none.
  std::byte* take(std::size_t capacity) {
    // Nobody waits here: in a forked process, a thread that is not there any more may hold the lock.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return nullptr;
    auto found = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (block->size() <= capacity && (found == blocks_.end() || block->size() > found->size())) found = block;
    }
    if (found == blocks_.end()) return nullptr;
    std::byte* const memory = grow(*found, capacity);
    if (memory == nullptr) return nullptr;
    kept_bytes_ -= found->size();
    blocks_.erase(found);
    return memory;
  }

  // Whether it was kept.
  bool give(std::span<std::byte> block) {
    if (block.size() < kLeastKeptBytes || block.size() > most_bytes_) return false;
    forget_pages(block);  // takes a while: not with the lock
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || block.size() > most_bytes_) return false;
    shrink(most_bytes_ - block.size());
    blocks_.push_back(block);
    kept_bytes_ += block.size();
    return true;
  }

  void allow(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    most_bytes_ += bytes;
  }

  void withdraw(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    most_bytes_ -= bytes;
    shrink(most_bytes_);
  }

 private:
  void shrink(std::size_t most_bytes) {
    while (kept_bytes_ > most_bytes) {
      kept_bytes_ -= blocks_.front().size();
      munmap(blocks_.front().data(), blocks_.front().size());
      blocks_.pop_front();
    }
  }

  std::mutex mutex_;
  std::deque<std::span<std::byte>> blocks_;
  std::atomic<std::size_t> most_bytes_ = 0;
  std::size_t kept_bytes_ = 0;
};

// Never destroyed: memory is given back until the process ends.
Shelf& shelf() {
  static Shelf* const shelf = new Shelf;
  return *shelf;
}

}  // namespace

std::byte* take_pages(std::size_t bytes, Content content) {
  const std::size_t capacity = capacity_for(bytes);
  std::byte* const kept = content == Content::kAny ? shelf().take(capacity) : nullptr;
  return kept != nullptr ? kept : map_pages(capacity, content);
}

void give_pages(std::span<std::byte> pages) noexcept {
  const std::span<std::byte> block(pages.data(), capacity_for(pages.size()));
  if (!shelf().give(block)) munmap(block.data(), block.size());
}

void drop_pages(std::span<std::byte> bytes) {
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t first = (address + page_bytes - 1) / page_bytes * page_bytes;
  const std::uintptr_t last = (address + bytes.size()) / page_bytes * page_bytes;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

PageMemory::PageMemory(std::size_t bytes, Content content) {
  if (bytes > 0) bytes_ = {take_pages(bytes, content), bytes};
}

PageMemory::~PageMemory() {
  if (!bytes_.empty()) give_pages(bytes_);
}

void PageMemory::forget() {
  if (!bytes_.empty()) forget_pages(bytes_);
}

PageMemory::PageMemory(PageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

KeptPages::KeptPages(std::size_t most_bytes) : most_bytes_(most_bytes) { shelf().allow(most_bytes_); }

KeptPages::~KeptPages() { shelf().withdraw(most_bytes_); }

}  // namespace diskgnn
