// The rows of one feature file in memory, and how those of one minibatch come together from there and from its extent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "loading/extent_index.h"
#include "loading/row_reader.h"

namespace diskgnn {

// Gaps between the pages of rows, up to this size, are read along: a request of its own costs the disk as much as 49
// KB, and the processor as much as some pages (docs/PERFORMANCE.md).
inline constexpr std::uint64_t kReadAlongBytes = 16 << 10;

// Where rows are in memory. Addresses: [0, num_device) are read by the device itself and not staged here,
// [num_device, num_static) pinned, [num_static, num_static + C) cpu, beyond that rows of the extent.
struct Tiers {
  std::size_t row_bytes = 0;
  std::int64_t num_device = 0;
  std::int64_t num_static = 0;
  std::span<const std::byte> pinned;               // rows [num_device, num_static)
  std::span<std::byte> cpu;                        // C rows
  std::span<const std::int32_t> next_cycle_slots;  // [C] slot i takes what this slot had in the cycle before
  std::optional<RowFile> file;  // that rows of extents lie in: an extent has the number of each, a RowNumber; or none
  EngineKind engine = EngineKind::kAuto;  // of what reads that file
};

using RowNumber = std::int64_t;

struct RowCounts {
  std::int64_t requested = 0, device = 0, pinned = 0, cpu = 0, disk = 0;

  RowCounts& operator+=(const RowCounts& other) {
    requested += other.requested, device += other.device, pinned += other.pinned, cpu += other.cpu, disk += other.disk;
    return *this;
  }
};

// One thread calls `take`, then `gather`, then `scatter` for each minibatch in turn.
class RowSet {
 public:
  // Throws std::invalid_argument when the tiers' sizes do not fit each other.
  explicit RowSet(const Tiers& tiers);

  std::size_t row_bytes() const { return tiers_.row_bytes; }
  bool has_cpu_tier() const { return !tiers_.next_cycle_slots.empty(); }

  // Reads rows whose numbers extents have; nullptr where extents have the rows.
  std::unique_ptr<RowReader> make_reader(bool verify) const;

  // Reads from a header what the next minibatch needs, and which rows the cpu tier takes. What is wrong with it, or
  // nullptr.
  const char* take(const RowsRecord& record, const std::byte* header);

  // Of the minibatch that was taken: rows to stage, in input order, those left out that the device reads by itself.
  std::size_t num_staged() const { return num_staged_; }
  const RowCounts& counts() const { return counts_; }

  // Copies the rows that are in memory to their places among the staged ones.
  void gather(std::byte* staged, unsigned threads) const;

  // Copies rows of the extent to their places among the staged ones and in the cpu tier. `piece` begins `offset` bytes
  // after the start of row 0; a row may lie across two pieces. All pieces come after `gather`: whatever leaves the cpu
  // tier has been gathered then.
  void scatter(std::span<const std::byte> piece, std::size_t offset, std::byte* staged) const;

  // Permutes the cpu tier in place, so that the next cycle finds its rows where the schedule says.
  void start_next_cycle();

 private:
  struct CachedRow {
    std::int32_t output;  // among the staged rows
    std::int32_t address;
  };
  // Where a row of the extent goes.
  struct Destination {
    std::int32_t output = kNowhere;  // among the staged rows
    std::int32_t slot = kNowhere;    // of the cpu tier, when it is admitted
  };
  static constexpr std::int32_t kNowhere = -1;

  const char* classify(const RowsRecord& record, const std::byte* addresses);
  const char* admit(const RowsRecord& record, const std::byte* admissions);
  const std::byte* cached_row(std::int32_t address) const;

  Tiers tiers_;
  // Of the minibatch that was taken; kept, as fresh memory is dear.
  std::vector<CachedRow> cached_;
  std::vector<Destination> destinations_;  // [R] of the extent's rows, and one that takes what has no place
  std::size_t num_staged_ = 0;
  RowCounts counts_;
};

template <typename Number>
bool is_permutation(std::span<const Number> numbers) {
  std::vector<bool> taken(numbers.size(), false);
  for (const Number number : numbers) {
    if (number < 0 || static_cast<std::size_t>(number) >= taken.size() || taken[static_cast<std::size_t>(number)]) {
      return false;
    }
    taken[static_cast<std::size_t>(number)] = true;
  }
  return true;
}

}  // namespace diskgnn
