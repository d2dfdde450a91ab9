// What an index and headers say, whatever it is, is refused, or makes the minibatches that docs/FORMAT.md describes:
// `ExtentIndex` and `RowSet`, without the threads around them.
#include <memory>
#include <stdexcept>
#include <vector>

#include "fuzz/entry.h"
#include "fuzz/packed_directory.h"

namespace diskgnn {
namespace {

// Scatters the rows of an extent in pieces, as reads bring them.
void scatter(const RowSet& rows, std::size_t num_rows, std::size_t piece_bytes, std::byte* staged) {
  const std::vector<std::byte> on_disk = row_content(kDiskContent, num_rows, rows.row_bytes());
  for (std::size_t offset = 0; offset < on_disk.size(); offset += piece_bytes) {
    rows.scatter(std::span(on_disk).subspan(offset, std::min(piece_bytes, on_disk.size() - offset)), offset, staged);
  }
}

void read_all(Input& input) {
  HostileDirectory directory = take_directory(input), expected = directory;
  const std::size_t piece_bytes = 1 + input.take<std::uint8_t>() * 16;
  const NamedBytes file(directory.file_bytes);
  std::vector<RowSet> sets;
  for (HostileTiers& set : directory.sets) sets.emplace_back(set.tiers());
  const ExtentIndex index(directory.extents, directory.rows, directory.row_bytes(), directory.row_bytes(), file);
  if (index.most_header_bytes() > kMostHeaderBytes || index.most_staged_bytes() > kMostStagedBytes) return;
  for (int cycle = 0; cycle < 2; ++cycle) {
    for (std::size_t i = 0; i < index.size(); ++i) {
      const auto extent = static_cast<std::int64_t>(i);
      must(index.extent_at(static_cast<std::uint64_t>(index[extent].offset)) == extent);
      for (std::size_t k = 0; k < sets.size(); ++k) {
        const RowsRecord& record = index.rows(extent)[k];
        const char* const fault = sets[k].take(record, directory.headers[i].data());
        const auto rows = expected_rows(expected.sets[k], record, directory.headers[i]);
        must((fault == nullptr) == rows.has_value());
        if (fault != nullptr) return;
        must(sets[k].num_staged() * sets[k].row_bytes() == rows->size());
        must(rows->size() <= index.staging(extent)[k + 1] - index.staging(extent)[k]);
        std::vector<std::byte> staged(rows->size());
        sets[k].gather(staged.data(), 1);
        scatter(sets[k], static_cast<std::size_t>(record.num_rows), piece_bytes, staged.data());
        must(staged == *rows && directory.sets[k].cpu == expected.sets[k].cpu);
      }
    }
    for (std::size_t k = 0; k < sets.size(); ++k) {
      sets[k].start_next_cycle();
      start_next_cycle(expected.sets[k]);
      must(directory.sets[k].cpu == expected.sets[k].cpu);
    }
  }
}

}  // namespace

// A damaged index is a std::invalid_argument.
void execute(Input& input) {
  unless_refused<std::invalid_argument>([&] { read_all(input); });
}

}  // namespace diskgnn
