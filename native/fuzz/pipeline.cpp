// The whole native pipeline on a packed directory that a stranger made, checksums included: it yields the minibatches
// that docs/FORMAT.md describes, or ends with the error that says what is damaged.
#include <chrono>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "files/crc32c.h"
#include "fuzz/entry.h"
#include "fuzz/immediate_engine.h"
#include "fuzz/packed_directory.h"
#include "loading/extent_pipeline.h"

namespace diskgnn {
namespace {

constexpr std::uint64_t kMostFileBytes = 1 << 16;

class MemorySource final : public NamedBytes {
 public:
  explicit MemorySource(std::vector<std::byte> bytes) : NamedBytes(bytes.size()), bytes_(std::move(bytes)) {}
  std::unique_ptr<ReadEngine> engine(std::span<std::byte> /*registered*/) const override {
    const auto read = [this](const ReadRequest& request) {
      must(request.offset + request.required_bytes <= bytes_.size());
      std::memcpy(request.destination.data(), bytes_.data() + request.offset, request.required_bytes);
    };
    return std::make_unique<ImmediateEngine<decltype(read)>>(read);
  }

 private:
  const std::vector<std::byte> bytes_;
};

// The file that the index describes, with rows whose content is known, as far as it is one. Enters the checksums.
std::vector<std::byte> make_file(HostileDirectory& directory) {
  std::vector<std::byte> file(directory.file_bytes);
  const auto put = [&](std::int64_t offset, std::span<const std::byte> bytes) {
    if (offset < 0 || static_cast<std::uint64_t>(offset) > file.size()) return;
    const auto room = std::span(file).subspan(static_cast<std::size_t>(offset));
    std::copy_n(bytes.begin(), std::min(bytes.size(), room.size()), room.begin());
  };
  for (std::size_t i = 0; i < directory.extents.size(); ++i) {
    ExtentRecord& extent = directory.extents[i];
    if (extent.offset < 0 || static_cast<std::uint64_t>(extent.offset) > file.size()) continue;
    put(extent.offset, directory.headers[i]);
    extent.header_crc32c = crc32c(directory.headers[i], 0);
    for (std::size_t k = 0; k < directory.sets.size(); ++k) {
      RowsRecord& rows = directory.rows[i * directory.sets.size() + k];
      const std::size_t row_bytes = directory.sets[k].row_bytes;
      if (rows.num_rows < 0 || row_bytes == 0 || rows.rows_offset < 0) continue;
      if (static_cast<std::uint64_t>(rows.num_rows) > file.size() / row_bytes) continue;
      if (static_cast<std::uint64_t>(rows.rows_offset) > file.size()) continue;
      const auto content = row_content(kDiskContent, static_cast<std::size_t>(rows.num_rows), row_bytes);
      put(extent.offset + rows.rows_offset, content);
      rows.rows_crc32c = crc32c(content, 0);
    }
  }
  return file;
}

void read_all(Input& input) {
  HostileDirectory directory = take_directory(input);
  if (directory.file_bytes > kMostFileBytes) return;
  const PipelineOptions options{1 + input.take_below(3), 1 + static_cast<unsigned>(input.take_below(2)), true};
  std::vector<std::byte> file = make_file(directory);
  // Damage that the checksums have to find.
  const std::size_t damaged = input.take<std::uint16_t>();
  const auto change = static_cast<std::byte>(input.take<std::uint8_t>());
  if (damaged < file.size()) file[damaged] ^= change;
  HostileDirectory expected = directory;
  std::vector<Tiers> tiers;
  for (HostileTiers& set : directory.sets) tiers.push_back(set.tiers());
  ExtentPipeline pipeline(std::make_unique<MemorySource>(std::move(file)), directory.extents, directory.rows, tiers,
                          options);
  const auto count = static_cast<std::int64_t>(directory.extents.size());
  const auto position = static_cast<std::int64_t>(input.take_below(static_cast<std::size_t>(count)));
  if (position != 0) {  // from there on, the cpu tier is not what the first minibatches left
    pipeline.start(position, 1);
    pipeline.next(std::chrono::seconds(10));
    return;
  }
  pipeline.start(0, 2 * count);
  for (std::int64_t i = 0; i < 2 * count; ++i) {
    if (i == count) {
      for (HostileTiers& set : expected.sets) start_next_cycle(set);
    }
    const std::optional<StagedMinibatch> minibatch = pipeline.next(std::chrono::seconds(10));
    must(minibatch.has_value() && minibatch->extent == i % count);
    const auto extent = static_cast<std::size_t>(minibatch->extent);
    for (std::size_t k = 0; k < expected.sets.size(); ++k) {
      const RowsRecord& record = expected.rows[extent * expected.sets.size() + k];
      const auto rows = expected_rows(expected.sets[k], record, expected.headers[extent]);
      must(rows.has_value() && std::ranges::equal(*rows, minibatch->rows[k]));
    }
  }
}

}  // namespace

// A damaged index is a std::invalid_argument.
void execute(Input& input) {
  unless_refused<std::invalid_argument, DamagedExtent>([&] { read_all(input); });
}

}  // namespace diskgnn
