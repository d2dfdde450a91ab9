// Which of consecutive ranges of ids an id is in, where ids are strings of bytes: the kernel of an external sort.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace diskgnn {

// Strings as Arrow's large_string and large_binary hold them: number i is bytes[offsets[i]..offsets[i + 1]).
struct Strings {
  std::span<const std::int64_t> offsets;  // one more than there are strings
  std::span<const std::uint8_t> bytes;

  std::size_t size() const { return offsets.size() - 1; }
  std::string_view operator[](std::size_t i) const {
    return {reinterpret_cast<const char*>(bytes.data()) + offsets[i],
            static_cast<std::size_t>(offsets[i + 1] - offsets[i])};
  }
};

// Writes for each id how many of the ascending `bounds` are not above it, in the order of bytes.
void find_ranges(const Strings& ids, const Strings& bounds, std::span<std::uint16_t> ranges);

}  // namespace diskgnn
