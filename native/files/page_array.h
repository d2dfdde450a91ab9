// Arrays of numbers that are made again and again, such as those of minibatches.
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <vector>

#include "files/page_memory.h"

namespace diskgnn {

// Large arrays are in memory that serves the next one while a KeptPages is alive. The C library would give it back, and
// then finding and clearing fresh pages takes longer than most of what is done with them. Numbers that are not given
// are not set: `resize` is for what is written next.
template <typename T>
class PageAllocator {
 public:
  using value_type = T;

  PageAllocator() = default;
  template <typename Other>
  PageAllocator(const PageAllocator<Other>&) noexcept {}

  T* allocate(std::size_t count) {
    const std::size_t bytes = count * sizeof(T);
    return static_cast<T*>(is_large(bytes) ? static_cast<void*>(take_pages(bytes)) : ::operator new(bytes));
  }

  void deallocate(T* numbers, std::size_t count) noexcept {
    const std::size_t bytes = count * sizeof(T);
    if (is_large(bytes)) {
      give_pages({reinterpret_cast<std::byte*>(numbers), bytes});
    } else {
      ::operator delete(numbers);
    }
  }

  template <typename Number>
  void construct(Number* place) noexcept {
    ::new (static_cast<void*>(place)) Number;
  }

  bool operator==(const PageAllocator&) const = default;

 private:
  static bool is_large(std::size_t bytes) { return bytes >= kLeastKeptBytes; }
};

template <typename T>
using PageArray = std::vector<T, PageAllocator<T>>;

}  // namespace diskgnn
