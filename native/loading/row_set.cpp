#include "loading/row_set.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "files/parallel.h"
#include "files/row_copy.h"

namespace diskgnn {
namespace {

constexpr std::size_t kPrefetchBytes = 8192;  // of rows to come, while one is gathered
constexpr std::size_t kGatherGrain = 2048;    // rows that a thread takes at a time

std::int32_t load_int32(const std::byte* array, std::size_t index) {
  std::int32_t value;
  std::memcpy(&value, array + index * sizeof(value), sizeof(value));
  return value;
}

std::size_t unsign(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

RowSet::RowSet(const Tiers& tiers) : tiers_(tiers) {
  if (tiers_.num_device < 0 || tiers_.num_static < tiers_.num_device ||
      tiers_.num_static > std::numeric_limits<std::int32_t>::max() ||
      tiers_.pinned.size() != unsign(tiers_.num_static - tiers_.num_device) * tiers_.row_bytes ||
      tiers_.cpu.size() != tiers_.next_cycle_slots.size() * tiers_.row_bytes) {
    throw std::invalid_argument("the tiers' sizes do not fit their numbers of rows");
  }
  if (tiers_.file.has_value() && tiers_.file->row_bytes != tiers_.row_bytes) {
    throw std::invalid_argument("rows of the file have another length");
  }
  if (!is_permutation(tiers_.next_cycle_slots)) throw std::invalid_argument("next_cycle_slots is not a permutation");
}

std::unique_ptr<RowReader> RowSet::make_reader(bool verify) const {
  if (!tiers_.file.has_value()) return nullptr;
  RowFile file = *tiers_.file;
  if (!verify) file.checksums = {};
  file.most_gap_bytes = kReadAlongBytes;
  return std::make_unique<RowReader>(file, tiers_.engine);
}

const char* RowSet::take(const RowsRecord& record, const std::byte* header) {
  const char* const fault = classify(record, header + record.addresses_offset);
  return fault != nullptr ? fault : admit(record, header + record.admissions_offset);
}

// Splits the inputs by tier: what to copy from memory, and where each row of the extent goes. Which tier comes next is
// as good as random, so nothing branches on it: each input is noted for all, and counted where it belongs.
const char* RowSet::classify(const RowsRecord& record, const std::byte* addresses) {
  const auto num_inputs = unsign(record.num_inputs), num_rows = unsign(record.num_rows);
  const auto num_device = static_cast<std::int32_t>(tiers_.num_device);
  const auto num_static = static_cast<std::int32_t>(tiers_.num_static);
  const std::int64_t first_on_disk = tiers_.num_static + static_cast<std::int64_t>(tiers_.next_cycle_slots.size());
  cached_.resize(num_inputs + 1);
  destinations_.assign(num_rows + 1, {});
  std::size_t output = 0, num_cached = 0, num_static_rows = 0;
  std::int32_t lowest = 0;
  for (std::size_t i = 0; i < num_inputs; ++i) {
    const std::int32_t address = load_int32(addresses, i);
    lowest = std::min(lowest, address);
    const bool on_device = address < num_device, on_disk = address >= first_on_disk;
    cached_[num_cached] = {static_cast<std::int32_t>(output), address};
    // A row that the extent does not have goes to the last place, hence one that it has stays without a destination.
    const std::size_t row = on_disk ? unsign(address - first_on_disk) : num_rows;
    destinations_[std::min(row, num_rows)].output = static_cast<std::int32_t>(output);
    num_cached += !on_device && !on_disk;
    num_static_rows += address < num_static;
    output += !on_device;
  }
  cached_.resize(num_cached);
  if (lowest < 0) return "an address is negative";
  const bool all_once =
      output - num_cached == num_rows && std::none_of(destinations_.begin(), destinations_.end() - 1,
                                                      [](const Destination& to) { return to.output == kNowhere; });
  if (!all_once) return "its addresses are not those of its rows, each once";
  num_staged_ = output;
  counts_.requested = record.num_inputs;
  counts_.device = static_cast<std::int64_t>(num_inputs - output);
  counts_.pinned = static_cast<std::int64_t>(num_static_rows) - counts_.device;
  counts_.cpu = static_cast<std::int64_t>(num_cached) - counts_.pinned;
  counts_.disk = record.num_rows;
  return nullptr;
}

// Notes which rows the cpu tier takes, to be copied when they come by.
const char* RowSet::admit(const RowsRecord& record, const std::byte* admissions) {
  for (std::size_t i = 0; i < unsign(record.num_admissions); ++i) {
    const std::int32_t row = load_int32(admissions, 2 * i), slot = load_int32(admissions, 2 * i + 1);
    if (row < 0 || row >= record.num_rows || slot < 0 || unsign(slot) >= tiers_.next_cycle_slots.size()) {
      return "an admission is out of range";
    }
    destinations_[unsign(row)].slot = slot;
  }
  return nullptr;
}

const std::byte* RowSet::cached_row(std::int32_t address) const {
  const bool pinned = address < tiers_.num_static;
  const std::byte* const tier = pinned ? tiers_.pinned.data() : tiers_.cpu.data();
  return tier + unsign(address - (pinned ? tiers_.num_device : tiers_.num_static)) * tiers_.row_bytes;
}

void RowSet::gather(std::byte* staged, unsigned threads) const {
  std::atomic<std::size_t> next{0};
  const std::size_t row_bytes = tiers_.row_bytes, ahead = std::max<std::size_t>(2, kPrefetchBytes / row_bytes);
  const std::size_t grains = (cached_.size() + kGatherGrain - 1) / kGatherGrain;
  const auto copy = is_streamable(row_bytes) ? stream_row : copy_row;
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(threads, std::max<std::size_t>(1, grains))), [&] {
    for (std::size_t grain = next++; grain < grains; grain = next++) {
      const std::size_t end = std::min(cached_.size(), (grain + 1) * kGatherGrain);
      for (std::size_t i = grain * kGatherGrain; i < end; ++i) {
        if (i + ahead < end) prefetch_lines(cached_row(cached_[i + ahead].address), row_bytes);
        copy(staged + unsign(cached_[i].output) * row_bytes, cached_row(cached_[i].address), row_bytes);
      }
    }
    finish_streaming();
  });
}

void RowSet::scatter(std::span<const std::byte> piece, std::size_t offset, std::byte* staged) const {
  const std::size_t row_bytes = tiers_.row_bytes;
  const auto copy = is_streamable(row_bytes) ? stream_row : copy_row;
  std::size_t row = offset / row_bytes, within = offset % row_bytes;
  while (!piece.empty()) {
    const Destination to = destinations_[row++];
    const std::size_t bytes = std::min(row_bytes - within, piece.size());
    copy(staged + unsign(to.output) * row_bytes + within, piece.data(), bytes);
    if (to.slot != kNowhere) copy(tiers_.cpu.data() + unsign(to.slot) * row_bytes + within, piece.data(), bytes);
    piece = piece.subspan(bytes);
    within = 0;
  }
}

void RowSet::start_next_cycle() {
  const std::size_t row_bytes = tiers_.row_bytes;
  std::vector<bool> placed(tiers_.next_cycle_slots.size(), false);
  std::vector<std::byte> first(row_bytes);
  const auto slot = [&](std::size_t i) { return tiers_.cpu.data() + i * row_bytes; };
  for (std::size_t start = 0; start < placed.size(); ++start) {
    if (placed[start] || unsign(tiers_.next_cycle_slots[start]) == start) continue;
    copy_row(first.data(), slot(start), row_bytes);
    std::size_t to = start;
    for (;;) {
      placed[to] = true;
      const std::size_t from = unsign(tiers_.next_cycle_slots[to]);
      if (placed[from]) break;
      copy_row(slot(to), slot(from), row_bytes);
      to = from;
    }
    copy_row(slot(to), first.data(), row_bytes);
  }
}

}  // namespace diskgnn
