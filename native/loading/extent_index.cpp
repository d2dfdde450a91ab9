#include "loading/extent_index.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "files/row_copy.h"

namespace diskgnn {
namespace {

constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kMaxStagedBytes = std::uint64_t{1} << 62;

std::size_t unsign(std::int64_t value) { return static_cast<std::size_t>(value); }

std::uint64_t aligned(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

ExtentIndex::ExtentIndex(std::vector<ExtentRecord> extents, std::vector<RowsRecord> rows,
                         std::vector<std::size_t> row_bytes, std::vector<std::size_t> stored_bytes,
                         const ByteSource& file)
    : extents_(std::move(extents)),
      rows_(std::move(rows)),
      row_bytes_(std::move(row_bytes)),
      stored_bytes_(std::move(stored_bytes)) {
  if (extents_.empty()) throw std::invalid_argument("the index of " + file.path() + " has no extents");
  if (rows_.size() != extents_.size() * row_bytes_.size()) {
    throw std::invalid_argument("the index of " + file.path() + " has another number of row sets");
  }
  for (const std::size_t bytes : row_bytes_) {
    if (bytes == 0 || bytes > unsign(kMaxCount)) {
      throw std::invalid_argument("rows of " + file.path() + " have no bytes, or are wider than 2 GiB");
    }
  }
  const auto file_bytes = static_cast<std::int64_t>(file.size_bytes());
  std::int64_t end = 0;
  for (std::int64_t i = 0; unsign(i) < extents_.size(); ++i) {
    if (extents_[unsign(i)].offset != end || !is_sound(i, file_bytes - end)) {
      throw std::invalid_argument("the index of " + file.path() + " is damaged");
    }
    end += extent_bytes(i);
  }
  if (end != file_bytes) {
    throw std::invalid_argument(file.path() + " has " + std::to_string(file_bytes) + " bytes, its index says " +
                                std::to_string(end));
  }
}

// Whether the parts of an extent, of which the file has at most `most_bytes`, lie one after another.
bool ExtentIndex::is_sound(std::int64_t extent, std::int64_t most_bytes) const {
  const std::int64_t header_bytes = (*this)[extent].header_bytes;
  if (header_bytes <= 0 || header_bytes > std::min(kMaxCount, most_bytes)) return false;
  const auto in_header = [&](std::int64_t begin, std::int64_t count, std::int64_t item_bytes) {
    return begin >= 0 && count >= 0 && count <= kMaxCount && begin <= header_bytes &&
           count * item_bytes <= header_bytes - begin;
  };
  std::int64_t end = header_bytes;
  std::uint64_t staged_bytes = 0;
  for (std::size_t k = 0; k < row_bytes_.size(); ++k) {
    const RowsRecord& rows = this->rows(extent)[k];
    if (!in_header(rows.addresses_offset, rows.num_inputs, 4) ||
        !in_header(rows.admissions_offset, rows.num_admissions, 8) || rows.num_rows < 0 ||
        rows.num_rows > rows.num_inputs || rows.rows_offset < end || rows.rows_offset > most_bytes) {
      return false;
    }
    end = rows.rows_offset + rows.num_rows * static_cast<std::int64_t>(stored_bytes_[k]);  // below 2^62, twice
    if (end > most_bytes) return false;
    staged_bytes += aligned(unsign(rows.num_inputs) * row_bytes_[k], kCacheLineBytes);
    if (staged_bytes > kMaxStagedBytes) return false;
  }
  return extent_bytes(extent) <= most_bytes;
}

std::int64_t ExtentIndex::extent_bytes(std::int64_t extent) const {
  std::uint64_t end = unsign((*this)[extent].header_bytes);
  if (!row_bytes_.empty()) {
    const RowsRecord& last = rows(extent).back();
    end = unsign(last.rows_offset) + unsign(last.num_rows) * stored_bytes_.back();
  }
  return static_cast<std::int64_t>(aligned(end, kDirectAlignment));
}

std::int64_t ExtentIndex::extent_at(std::uint64_t offset) const {
  const auto after = std::ranges::upper_bound(extents_, static_cast<std::int64_t>(offset), {}, &ExtentRecord::offset);
  return after - extents_.begin() - 1;
}

std::vector<std::size_t> ExtentIndex::staging(std::int64_t extent) const {
  std::vector<std::size_t> bounds{0};
  for (std::size_t k = 0; k < row_bytes_.size(); ++k) {
    bounds.push_back(bounds.back() + aligned(unsign(rows(extent)[k].num_inputs) * row_bytes_[k], kCacheLineBytes));
  }
  return bounds;
}

std::size_t ExtentIndex::most_header_bytes() const {
  return unsign(std::ranges::max(extents_, {}, &ExtentRecord::header_bytes).header_bytes);
}

std::size_t ExtentIndex::most_staged_bytes() const {
  std::size_t most = 0;
  for (std::int64_t i = 0; unsign(i) < extents_.size(); ++i) most = std::max(most, staging(i).back());
  return most;
}

}  // namespace diskgnn
