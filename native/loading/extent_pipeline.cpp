#include "loading/extent_pipeline.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "storage/crc32c.h"
#include "storage/parallel.h"
#include "storage/row_copy.h"

namespace diskgnn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPrefetchBytes = 8192;  // of rows to come, while one is gathered
constexpr std::size_t kGatherGrain = 2048;    // rows that a thread takes at a time

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::int32_t load_int32(const std::byte* array, std::size_t index) {
  std::int32_t value;
  std::memcpy(&value, array + index * sizeof(value), sizeof(value));
  return value;
}

std::size_t unsign(std::int64_t value) { return static_cast<std::size_t>(value); }

std::int64_t padded_extent_bytes(const ExtentRecord& extent, std::size_t row_bytes) {
  const std::uint64_t used = unsign(extent.rows_offset) + unsign(extent.num_rows) * row_bytes;
  return static_cast<std::int64_t>((used + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment);
}

// An index that a stranger may have touched: nothing in it may lead outside of the file or of a buffer.
void check_index(const std::vector<ExtentRecord>& index, std::size_t row_bytes, const DirectFile& file) {
  if (index.empty()) throw std::invalid_argument("the index of " + file.path() + " has no extents");
  constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();
  if (row_bytes > unsign(kMaxCount)) throw std::invalid_argument("rows of " + file.path() + " are wider than 2 GiB");
  const auto file_bytes = static_cast<std::int64_t>(file.size_bytes());
  std::int64_t offset = 0;
  for (const ExtentRecord& extent : index) {
    const auto in_header = [&](std::int64_t begin, std::int64_t count, std::int64_t item_bytes) {
      return begin >= 0 && count >= 0 && count <= kMaxCount && begin <= extent.header_bytes &&
             count * item_bytes <= extent.header_bytes - begin;
    };
    const bool sound = extent.offset == offset && extent.header_bytes > 0 && extent.header_bytes <= kMaxCount &&
                       extent.rows_offset >= extent.header_bytes && extent.rows_offset <= kMaxCount &&
                       extent.num_rows >= 0 && extent.num_rows <= extent.num_inputs &&
                       in_header(extent.addresses_offset, extent.num_inputs, 4) &&
                       in_header(extent.admissions_offset, extent.num_admissions, 8) &&
                       padded_extent_bytes(extent, row_bytes) <= file_bytes - offset;
    if (!sound) throw std::invalid_argument("the index of " + file.path() + " is damaged");
    offset += padded_extent_bytes(extent, row_bytes);
  }
  if (offset != file_bytes) {
    throw std::invalid_argument(file.path() + " has " + std::to_string(file_bytes) + " bytes, its index says " +
                                std::to_string(offset));
  }
}

template <typename Number>
bool is_permutation(std::span<const Number> numbers) {
  std::vector<bool> taken(numbers.size(), false);
  for (const Number number : numbers) {
    if (number < 0 || unsign(number) >= taken.size() || taken[unsign(number)]) return false;
    taken[unsign(number)] = true;
  }
  return true;
}

std::size_t largest(const std::vector<ExtentRecord>& index, std::int64_t ExtentRecord::* field) {
  std::int64_t value = 0;
  for (const ExtentRecord& extent : index) value = std::max(value, extent.*field);
  return unsign(value);
}

}  // namespace

ExtentPipeline::ExtentPipeline(DirectFile file, std::vector<ExtentRecord> index, Tiers tiers, PipelineOptions options)
    : file_(std::move(file)), index_(std::move(index)), tiers_(tiers), options_(options) {
  check_index(index_, tiers_.row_bytes, file_);
  if (tiers_.num_device < 0 || tiers_.num_static < tiers_.num_device ||
      tiers_.num_static > std::numeric_limits<std::int32_t>::max() ||
      tiers_.pinned.size() != unsign(tiers_.num_static - tiers_.num_device) * tiers_.row_bytes ||
      tiers_.cpu.size() != tiers_.next_cycle_slots.size() * tiers_.row_bytes) {
    throw std::invalid_argument("the tiers' sizes do not fit their numbers of rows");
  }
  if (!is_permutation(tiers_.next_cycle_slots)) throw std::invalid_argument("next_cycle_slots is not a permutation");
  order_.resize(index_.size());
  std::iota(order_.begin(), order_.end(), 0);
  positions_ = order_;
  // One more than are ready: the user's loop still holds a minibatch while it asks for the next.
  buffers_ = std::make_shared<BufferPool>(options_.prefetch + 1, largest(index_, &ExtentRecord::header_bytes),
                                          largest(index_, &ExtentRecord::num_inputs) * tiers_.row_bytes);
}

ExtentPipeline::~ExtentPipeline() { stop(); }

void ExtentPipeline::set_order(std::vector<std::int64_t> order) {
  std::lock_guard lock(mutex_);
  if (!tiers_.next_cycle_slots.empty()) throw std::invalid_argument("the cpu tier's schedule fixes the order");
  if (allowed_ > 0 && running_) throw std::invalid_argument("minibatches in another order are still to come");
  if (order.size() != index_.size() || !is_permutation(std::span<const std::int64_t>(order))) {
    throw std::invalid_argument("order is not a permutation of the extents");
  }
  order_ = std::move(order);
  for (std::size_t i = 0; i < order_.size(); ++i) positions_[unsign(order_[i])] = static_cast<std::int64_t>(i);
}

void ExtentPipeline::start(std::int64_t position, std::int64_t count) {
  if (position < 0 || unsign(position) >= index_.size()) throw std::invalid_argument("position is out of range");
  require_own_process();
  std::lock_guard control(control_mutex_);
  stop_threads();
  buffers_->reopen();
  auto stream = std::make_unique<ChunkStream>(file_, options_.engine, trace_,
                                              [this](std::uint64_t offset) { return position_of(offset); });
  {
    std::lock_guard lock(mutex_);
    failure_ = nullptr;
    stream_ = std::move(stream);
    running_ = true;
    allowed_ = 0;
    next_allowed_ = position;
    allow(count);
  }
  assembler_ = std::thread([this, position] { assemble_all(position); });
}

void ExtentPipeline::extend(std::int64_t count) {
  {
    std::lock_guard lock(mutex_);
    if (stream_ != nullptr) allow(count);
  }
  ready_changed_.notify_all();
}

// Under the lock: lets `count` more minibatches, and their extents, through.
void ExtentPipeline::allow(std::int64_t count) {
  allowed_ += count;
  std::vector<ByteRange> ranges;
  for (; count > 0; --count) {
    const ExtentRecord& extent = index_[unsign(order_[unsign(next_allowed_)])];
    ranges.push_back({unsign(extent.offset), unsign(padded_extent_bytes(extent, tiers_.row_bytes))});
    if (unsign(++next_allowed_) == index_.size()) next_allowed_ = 0;
  }
  stream_->allow(ranges);
}

void ExtentPipeline::require_own_process() const {
  if (!in_own_process()) throw std::logic_error("the pipeline's threads are in the process that started them");
}

void ExtentPipeline::stop() {
  if (!in_own_process()) return;
  std::lock_guard control(control_mutex_);
  stop_threads();
}

void ExtentPipeline::stop_threads() {
  {
    std::lock_guard lock(mutex_);
    running_ = false;
  }
  ready_changed_.notify_all();
  buffers_->close();
  if (stream_ != nullptr) stream_->stop();
  if (assembler_.joinable()) assembler_.join();
  std::lock_guard lock(mutex_);
  if (stream_ != nullptr) {
    add_reads(stats_);
    stream_.reset();
  }
  ready_.clear();
}

std::optional<StagedMinibatch> ExtentPipeline::next(std::chrono::milliseconds timeout) {
  require_own_process();
  buffers_->count_kept();
  const Clock::time_point started = Clock::now();
  std::unique_lock lock(mutex_);
  if (ready_.empty() && failure_ == nullptr && running_) {
    ready_changed_.wait_for(lock, timeout, [this] { return !ready_.empty() || failure_ != nullptr || !running_; });
    stats_.wait_seconds += seconds_since(started);
  }
  if (ready_.empty()) {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    if (!running_) throw std::runtime_error("the pipeline was stopped");
    return std::nullopt;
  }
  StagedMinibatch minibatch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  buffers_->hand_out(*minibatch.buffer);
  ready_changed_.notify_all();
  return minibatch;
}

void ExtentPipeline::add_reads(PipelineStats& stats) const {
  const ChunkStream::Reads reads = stream_->completed();
  stats.read_bytes += static_cast<std::int64_t>(reads.bytes);
  stats.read_requests += static_cast<std::int64_t>(reads.requests);
}

PipelineStats ExtentPipeline::stats() const {
  std::lock_guard lock(mutex_);
  PipelineStats stats = stats_;
  if (stream_ != nullptr) add_reads(stats);
  stats.read_wait_seconds = clock_.seconds(Stage::kWaitForDisk);
  stats.header_seconds = clock_.seconds(Stage::kHeader);
  stats.gather_seconds = clock_.seconds(Stage::kGather);
  stats.scatter_seconds = clock_.seconds(Stage::kScatter);
  stats.buffer_wait_seconds = clock_.seconds(Stage::kWaitForConsumer);
  return stats;
}

// For the reader's thread, while what it reads is allowed.
std::int64_t ExtentPipeline::position_of(std::uint64_t offset) const {
  const auto after = std::ranges::upper_bound(index_, static_cast<std::int64_t>(offset), {}, &ExtentRecord::offset);
  return positions_[unsign(after - index_.begin() - 1)];
}

void ExtentPipeline::throw_damaged(std::int64_t extent, const char* what) const {
  throw DamagedExtent("extent " + std::to_string(extent) + " of " + file_.path() + " is damaged: " + what);
}

void ExtentPipeline::assemble_all(std::int64_t position) {
  try {
    while (assemble(position)) {
      if (unsign(++position) == index_.size()) {
        position = 0;
        start_next_cycle();
      }
    }
  } catch (...) {
    std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    ready_changed_.notify_all();
  }
}

std::span<const std::byte> ExtentPipeline::peek() {
  std::span<const std::byte> chunk = stream_->peek_ready();
  if (!chunk.empty()) return chunk;
  const Stage interrupted = clock_.stage();
  clock_.enter(Stage::kWaitForDisk);
  chunk = stream_->peek();
  clock_.enter(interrupted);
  return chunk;
}

// False when the pipeline is stopped.
bool ExtentPipeline::assemble(std::int64_t position) {
  const ExtentRecord* found = nullptr;
  {
    std::unique_lock lock(mutex_);
    ready_changed_.wait(lock, [this] { return !running_ || allowed_ > 0; });
    clock_.begin(position, Stage::kWaitForConsumer);
    // A full queue ends read-ahead, not only a lack of buffers: the user may have taken many and given them back.
    ready_changed_.wait(lock, [this] { return !running_ || ready_.size() < options_.prefetch; });
    if (!running_) return false;
    found = &index_[unsign(order_[unsign(position)])];  // only now: the order may change before it is allowed
  }
  const ExtentRecord& extent = *found;
  StagedMinibatch minibatch{position, &extent - index_.data(), buffers_->acquire(), unsign(extent.header_bytes), 0};
  if (minibatch.buffer == nullptr) return false;

  clock_.enter(Stage::kHeader);
  std::byte* const header = minibatch.buffer->header();
  if (!copy_header(extent, header)) return false;
  classify(extent, header, minibatch);
  admit(extent, header);

  clock_.enter(Stage::kGather);
  std::byte* const rows = minibatch.buffer->rows();
  gather(rows);
  clock_.enter(Stage::kScatter);
  if (!scatter(extent, rows)) return false;
  clock_.end();

  {
    std::lock_guard lock(mutex_);
    --allowed_;
    ready_.push_back(std::move(minibatch));
  }
  ready_changed_.notify_all();
  return true;
}

bool ExtentPipeline::copy_header(const ExtentRecord& extent, std::byte* header) {
  const std::size_t header_bytes = unsign(extent.header_bytes);
  for (std::size_t done = 0; done < unsign(extent.rows_offset);) {
    const std::span<const std::byte> chunk = peek();
    if (chunk.empty()) return false;
    const std::size_t bytes = std::min(chunk.size(), unsign(extent.rows_offset) - done);
    if (done < header_bytes) std::memcpy(header + done, chunk.data(), std::min(bytes, header_bytes - done));
    stream_->consume(bytes);
    done += bytes;
  }
  if (crc32c({header, header_bytes}, 0) != static_cast<std::uint32_t>(extent.header_crc32c)) {
    throw_damaged(&extent - index_.data(), "its header does not have the checksum that was written");
  }
  return true;
}

// Splits the inputs by tier: what to copy from memory, and where each row of the extent goes. Which tier comes next is
// as good as random, so nothing branches on it: each input is noted for all, and counted where it belongs.
void ExtentPipeline::classify(const ExtentRecord& extent, const std::byte* header, StagedMinibatch& minibatch) {
  const std::byte* const addresses = header + extent.addresses_offset;
  const auto num_inputs = unsign(extent.num_inputs), num_rows = unsign(extent.num_rows);
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
  if (lowest < 0) throw_damaged(&extent - index_.data(), "an address is negative");
  const bool all_once =
      output - num_cached == num_rows && std::none_of(destinations_.begin(), destinations_.end() - 1,
                                                      [](const Destination& to) { return to.output == kNowhere; });
  if (!all_once) throw_damaged(&extent - index_.data(), "its addresses are not those of its rows, each once");
  minibatch.num_staged = output;
  const auto device_rows = static_cast<std::int64_t>(num_inputs - output);
  const auto pinned_rows = static_cast<std::int64_t>(num_static_rows) - device_rows;
  std::lock_guard lock(mutex_);
  stats_.requested_rows += extent.num_inputs;
  stats_.device_rows += device_rows;
  stats_.pinned_rows += pinned_rows;
  stats_.disk_rows += extent.num_rows;
  stats_.cpu_rows += static_cast<std::int64_t>(num_cached) - pinned_rows;
}

// Notes which rows the cpu tier takes, to be copied when they come by: all rows that leave it have been gathered then.
void ExtentPipeline::admit(const ExtentRecord& extent, const std::byte* header) {
  const std::byte* const admissions = header + extent.admissions_offset;
  for (std::size_t i = 0; i < unsign(extent.num_admissions); ++i) {
    const std::int32_t row = load_int32(admissions, 2 * i), slot = load_int32(admissions, 2 * i + 1);
    if (row < 0 || row >= extent.num_rows || slot < 0 || unsign(slot) >= tiers_.next_cycle_slots.size()) {
      throw_damaged(&extent - index_.data(), "an admission is out of range");
    }
    destinations_[unsign(row)].slot = slot;
  }
}

const std::byte* ExtentPipeline::cached_row(std::int32_t address) const {
  const bool pinned = address < tiers_.num_static;
  const std::byte* const tier = pinned ? tiers_.pinned.data() : tiers_.cpu.data();
  return tier + unsign(address - (pinned ? tiers_.num_device : tiers_.num_static)) * tiers_.row_bytes;
}

void ExtentPipeline::gather(std::byte* rows) {
  std::atomic<std::size_t> next{0};
  const std::size_t row_bytes = tiers_.row_bytes, ahead = std::max<std::size_t>(2, kPrefetchBytes / row_bytes);
  const std::size_t grains = (cached_.size() + kGatherGrain - 1) / kGatherGrain;
  const auto copy = is_streamable(row_bytes) ? stream_row : copy_row;
  run_on_threads(static_cast<unsigned>(std::min<std::size_t>(options_.threads, std::max<std::size_t>(1, grains))), [&] {
    for (std::size_t grain = next++; grain < grains; grain = next++) {
      const std::size_t end = std::min(cached_.size(), (grain + 1) * kGatherGrain);
      for (std::size_t i = grain * kGatherGrain; i < end; ++i) {
        if (i + ahead < end) prefetch_lines(cached_row(cached_[i + ahead].address), row_bytes);
        copy(rows + unsign(cached_[i].output) * row_bytes, cached_row(cached_[i].address), row_bytes);
      }
    }
    finish_streaming();
  });
}

// Moves rows from the stream to their places as chunks arrive.
bool ExtentPipeline::scatter(const ExtentRecord& extent, std::byte* rows) {
  const std::size_t rows_bytes = unsign(extent.num_rows) * tiers_.row_bytes;
  std::size_t padding = unsign(padded_extent_bytes(extent, tiers_.row_bytes) - extent.rows_offset) - rows_bytes;
  std::uint32_t crc = 0;
  for (std::size_t done = 0; done < rows_bytes;) {
    std::span<const std::byte> piece = peek();
    if (piece.empty()) return false;
    piece = piece.first(std::min(piece.size(), rows_bytes - done));
    if (options_.verify) crc = crc32c(piece, crc);
    scatter_piece(piece, done, rows);
    stream_->consume(piece.size());
    done += piece.size();
  }
  finish_streaming();
  if (options_.verify && crc != static_cast<std::uint32_t>(extent.rows_crc32c)) {
    throw_damaged(&extent - index_.data(), "its rows do not have the checksum that was written");
  }
  while (padding > 0) {
    const std::span<const std::byte> chunk = peek();
    if (chunk.empty()) return false;
    const std::size_t bytes = std::min(padding, chunk.size());
    stream_->consume(bytes);
    padding -= bytes;
  }
  return true;
}

// `piece` begins `offset` bytes after the start of row 0; a row may lie across two pieces.
void ExtentPipeline::scatter_piece(std::span<const std::byte> piece, std::size_t offset, std::byte* rows) {
  const std::size_t row_bytes = tiers_.row_bytes;
  const auto copy = is_streamable(row_bytes) ? stream_row : copy_row;
  std::size_t row = offset / row_bytes, within = offset % row_bytes;
  while (!piece.empty()) {
    const Destination to = destinations_[row++];
    const std::size_t bytes = std::min(row_bytes - within, piece.size());
    copy(rows + unsign(to.output) * row_bytes + within, piece.data(), bytes);
    if (to.slot != kNowhere) copy(tiers_.cpu.data() + unsign(to.slot) * row_bytes + within, piece.data(), bytes);
    piece = piece.subspan(bytes);
    within = 0;
  }
}

// Permutes the cpu tier in place, cycle by cycle, so that the next cycle finds its rows where the schedule says.
void ExtentPipeline::start_next_cycle() {
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
