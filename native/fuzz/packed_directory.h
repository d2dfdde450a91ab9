// A packed directory that a stranger made: tiers, index, headers, and what the minibatches in them have to be.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "draws.h"
#include "fuzz/input.h"
#include "loading/extent_index.h"
#include "loading/row_set.h"

namespace diskgnn {

// More is allowed, but would test the machine's memory.
inline constexpr std::size_t kMostHeaderBytes = 1 << 12, kMostStagedBytes = 1 << 14;

// The rows of one set in memory. Row n of the pinned tier is filled with what `row_content` says of n, those of the cpu
// tier with that of n + 1000, those of an extent with that of n + 2000.
struct HostileTiers {
  std::size_t row_bytes = 0;
  std::int64_t num_device = 0, num_static = 0;
  std::vector<std::byte> pinned, cpu;
  std::vector<std::int32_t> next_cycle_slots;

  Tiers tiers() { return {row_bytes, num_device, num_static, pinned, cpu, next_cycle_slots, std::nullopt}; }
  std::int64_t first_on_disk() const { return num_static + static_cast<std::int64_t>(next_cycle_slots.size()); }
};

inline constexpr std::size_t kCpuContent = 1000, kDiskContent = 2000, kMostRowBytes = 300;

inline std::vector<std::byte> row_content(std::size_t first, std::size_t count, std::size_t row_bytes) {
  static const std::vector<std::byte> noise = [] {
    std::vector<std::byte> bytes(1 << 14);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(mix64(i));
    return bytes;
  }();
  std::vector<std::byte> rows(count * row_bytes);
  for (std::size_t row = 0; row < count; ++row) {
    std::copy_n(noise.begin() + static_cast<std::ptrdiff_t>((first + row) * 251 % (noise.size() - kMostRowBytes)),
                row_bytes, rows.begin() + static_cast<std::ptrdiff_t>(row * row_bytes));
  }
  return rows;
}

struct HostileDirectory {
  std::vector<HostileTiers> sets;
  std::vector<ExtentRecord> extents;
  std::vector<RowsRecord> rows;
  std::uint64_t file_bytes = 0;
  std::vector<std::vector<std::byte>> headers;  // [T]; empty where an extent's is too long to try

  std::vector<std::size_t> row_bytes() const {
    std::vector<std::size_t> bytes;
    for (const HostileTiers& set : sets) bytes.push_back(set.row_bytes);
    return bytes;
  }
};

// In this order: how many row sets and extents there are; of each set its row's bytes, its tiers' rows and the slots of
// the next cycle; the pages of the file; the index; the headers. tools/fuzz_seeds.py writes the same.
inline HostileDirectory take_directory(Input& input) {
  HostileDirectory directory;
  directory.sets.resize(input.take_below(4));
  const std::size_t num_extents = input.take_below(5);
  for (HostileTiers& set : directory.sets) {
    set.row_bytes = input.take<std::uint16_t>() % (kMostRowBytes + 1);
    set.num_device = input.take<std::uint8_t>() % 64;
    set.num_static = set.num_device + input.take<std::uint8_t>() % 64;
    set.next_cycle_slots.resize(input.take<std::uint8_t>() % 64);
    for (std::int32_t& slot : set.next_cycle_slots) slot = input.take<std::int8_t>();
    set.pinned = row_content(0, static_cast<std::size_t>(set.num_static - set.num_device), set.row_bytes);
    set.cpu = row_content(kCpuContent, set.next_cycle_slots.size(), set.row_bytes);
  }
  directory.file_bytes = std::uint64_t{input.take<std::uint32_t>()} * kDirectAlignment;
  for (std::size_t i = 0; i < num_extents; ++i) directory.extents.push_back(input.take<ExtentRecord>());
  for (std::size_t i = 0; i < num_extents * directory.sets.size(); ++i) {
    directory.rows.push_back(input.take<RowsRecord>());
  }
  for (const ExtentRecord& extent : directory.extents) {
    std::vector<std::byte>& header = directory.headers.emplace_back();
    if (extent.header_bytes <= 0 || extent.header_bytes > static_cast<std::int64_t>(kMostHeaderBytes)) continue;
    header.resize(static_cast<std::size_t>(extent.header_bytes));
    const std::span<const std::uint8_t> bytes = input.take_bytes(header.size());
    std::memcpy(header.data(), bytes.data(), bytes.size());
  }
  return directory;
}

// What one minibatch has to be of one row set, by the words of docs/FORMAT.md; applies its admissions to the cpu tier.
// Nothing where they are broken.
inline std::optional<std::vector<std::byte>> expected_rows(HostileTiers& set, const RowsRecord& record,
                                                           const std::vector<std::byte>& header) {
  const auto number = [&](std::int64_t offset, std::int64_t index) {
    std::int32_t value;
    std::memcpy(&value, header.data() + offset + index * 4, 4);
    return value;
  };
  const auto row_of = [&](const std::vector<std::byte>& rows, std::int64_t row) {
    return std::span(rows).subspan(static_cast<std::size_t>(row) * set.row_bytes, set.row_bytes);
  };
  const std::int64_t first_on_disk = set.first_on_disk();
  const auto num_rows = static_cast<std::size_t>(record.num_rows);
  const std::vector<std::byte> on_disk = row_content(kDiskContent, num_rows, set.row_bytes);
  std::vector<std::byte> staged;
  std::vector<int> times(num_rows);  // that each row of the extent is addressed
  for (std::int64_t i = 0; i < record.num_inputs; ++i) {
    const std::int32_t address = number(record.addresses_offset, i);
    if (address < 0 || address >= first_on_disk + record.num_rows) return std::nullopt;
    if (address < set.num_device) continue;
    if (address >= first_on_disk) ++times[static_cast<std::size_t>(address - first_on_disk)];
    const std::span<const std::byte> row = address < set.num_static  ? row_of(set.pinned, address - set.num_device)
                                           : address < first_on_disk ? row_of(set.cpu, address - set.num_static)
                                                                     : row_of(on_disk, address - first_on_disk);
    staged.insert(staged.end(), row.begin(), row.end());
  }
  if (!std::ranges::all_of(times, [](int count) { return count == 1; })) return std::nullopt;
  std::vector<std::int64_t> slots(num_rows, -1);
  for (std::int64_t i = 0; i < record.num_admissions; ++i) {
    const std::int32_t row = number(record.admissions_offset, 2 * i),
                       slot = number(record.admissions_offset, 2 * i + 1);
    if (row < 0 || row >= record.num_rows || slot < 0 || slot >= first_on_disk - set.num_static) return std::nullopt;
    slots[static_cast<std::size_t>(row)] = slot;
  }
  for (std::size_t row = 0; row < num_rows; ++row) {
    if (slots[row] < 0) continue;
    const auto from = row_of(on_disk, static_cast<std::int64_t>(row));
    std::ranges::copy(from, set.cpu.begin() + slots[row] * static_cast<std::int64_t>(set.row_bytes));
  }
  return staged;
}

// The cpu tier when the sequence starts over.
inline void start_next_cycle(HostileTiers& set) {
  const std::vector<std::byte> before = set.cpu;
  for (std::size_t slot = 0; slot < set.next_cycle_slots.size(); ++slot) {
    const auto from = static_cast<std::size_t>(set.next_cycle_slots[slot]) * set.row_bytes;
    std::copy_n(before.begin() + static_cast<std::ptrdiff_t>(from), set.row_bytes,
                set.cpu.begin() + static_cast<std::ptrdiff_t>(slot * set.row_bytes));
  }
}

// A file that is not there: its name and size.
class NamedBytes : public ByteSource {
 public:
  explicit NamedBytes(std::uint64_t size_bytes) : size_bytes_(size_bytes) {}
  std::uint64_t size_bytes() const override { return size_bytes_; }
  const std::string& path() const override { return path_; }
  std::size_t chunk_bytes() const override { return kDirectAlignment; }
  unsigned depth() const override { return 2; }
  std::unique_ptr<ReadEngine> engine(std::span<std::byte> /*registered*/) const override { return nullptr; }

 private:
  const std::uint64_t size_bytes_;
  const std::string path_ = "train.bin";
};

}  // namespace diskgnn
