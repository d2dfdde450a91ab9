// Memory that direct reads can go to.
#pragma once

#include <cstddef>
#include <span>

namespace diskgnn {

// Anonymous memory, page-aligned, with huge pages where the system has them. Move-only.
class PageMemory {
 public:
  explicit PageMemory(std::size_t bytes);
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

}  // namespace diskgnn
