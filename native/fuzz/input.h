// The bytes of one execution, as numbers. What lies behind their end is zeros, so that every input says something.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace diskgnn {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  // The next number, as it lies on disk.
  template <typename Number>
  Number take() {
    Number number{};
    const std::span<const std::uint8_t> bytes = take_bytes(sizeof(Number));
    std::memcpy(&number, bytes.data(), bytes.size());
    return number;
  }

  // The next number, brought into [0, end).
  std::size_t take_below(std::size_t end) { return take<std::uint8_t>() % end; }

  // A signed number in two bytes, of which the extremes stand for those of 64 bits.
  std::int64_t take_far() {
    const auto number = take<std::int16_t>();
    return number == INT16_MAX ? INT64_MAX : number == INT16_MIN ? INT64_MIN : number;
  }

  // At most `size` bytes.
  std::span<const std::uint8_t> take_bytes(std::size_t size) {
    const std::span<const std::uint8_t> bytes = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// A broken promise ends the process, as a crash does: libFuzzer keeps the input.
inline void must(bool kept) {
  if (!kept) __builtin_trap();
}

}  // namespace diskgnn
