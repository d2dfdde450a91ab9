// Memory that direct reads can go to.
#pragma once

#include <cstddef>
#include <span>

namespace diskgnn {

// What is in memory that was just taken. Sparse is zeros of which most may stay untouched: it may be larger than the
// machine's memory, and a fork does not ask whether there would be room for all of it twice.
enum class Content { kAny, kZeros, kSparse };

// Blocks that are smaller are never kept: the C library serves them from memory that it has.
constexpr std::size_t kLeastKeptBytes = 256 << 10;

// Anonymous memory, page-aligned, with huge pages where the system has them. Throws std::bad_alloc. What was taken is
// given back with as many bytes.
std::byte* take_pages(std::size_t bytes, Content content = Content::kAny);
void give_pages(std::span<std::byte> pages) noexcept;

// Frees the pages that lie in `bytes` as a whole, of such memory: it is zeros until it is written again.
void drop_pages(std::span<std::byte> bytes);

// Such memory. Move-only.
class PageMemory {
 public:
  explicit PageMemory(std::size_t bytes, Content content = Content::kAny);
  ~PageMemory();
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&& other) noexcept;
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

  // Gives up the content. The system takes the pages only when it lacks memory. Those that it has not taken cost
  // nothing when they are written again; fresh ones would have to be found and cleared.
  void forget();

 private:
  std::span<std::byte> bytes_;
};

// While one is alive, memory that is given back is kept for those who take as much next, up to `most_bytes` (of all
// that are alive together). For work that is done again and again: clearing fresh pages takes longer than much of it.
// The system takes what it lacks.
class KeptPages {
 public:
  explicit KeptPages(std::size_t most_bytes);
  ~KeptPages();
  KeptPages(const KeptPages&) = delete;
  KeptPages& operator=(const KeptPages&) = delete;

 private:
  std::size_t most_bytes_;
};

}  // namespace diskgnn
