#include "storage/page_memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace diskgnn {

PageMemory::PageMemory(std::size_t bytes) {
  if (bytes == 0) return;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE);  // rows are gathered at random: fewer TLB misses
#endif
  bytes_ = {static_cast<std::byte*>(memory), bytes};
}

PageMemory::~PageMemory() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

void PageMemory::forget() {
  if (bytes_.empty() || madvise(bytes_.data(), bytes_.size(), MADV_FREE) == 0) return;
  madvise(bytes_.data(), bytes_.size(), MADV_DONTNEED);  // before Linux 4.5
}

PageMemory::PageMemory(PageMemory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

PageMemory& PageMemory::operator=(PageMemory&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace diskgnn
