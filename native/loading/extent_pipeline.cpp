#include "loading/extent_pipeline.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>

#include "files/crc32c.h"
#include "files/parallel.h"
#include "files/row_copy.h"

namespace diskgnn {
namespace {

using Clock = std::chrono::steady_clock;

// Chunks that each of several threads scatters before they wait for each other.
constexpr std::size_t kMinPiecesPerThread = 4, kMaxPiecesPerThread = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::size_t unsign(std::int64_t value) { return static_cast<std::size_t>(value); }

std::vector<std::size_t> row_bytes_of(std::span<const Tiers> tiers) {
  std::vector<std::size_t> row_bytes;
  for (const Tiers& each : tiers) row_bytes.push_back(each.row_bytes);
  return row_bytes;
}

std::vector<std::size_t> stored_bytes_of(std::span<const Tiers> tiers) {
  std::vector<std::size_t> stored_bytes;
  for (const Tiers& each : tiers) stored_bytes.push_back(each.file.has_value() ? sizeof(RowNumber) : each.row_bytes);
  return stored_bytes;
}

}  // namespace

ExtentPipeline::ExtentPipeline(std::unique_ptr<ByteSource> file, std::vector<ExtentRecord> extents,
                               std::vector<RowsRecord> rows, std::span<const Tiers> tiers, PipelineOptions options)
    : file_(std::move(file)),
      index_(std::move(extents), std::move(rows), row_bytes_of(tiers), stored_bytes_of(tiers), *file_),
      row_sets_(tiers.begin(), tiers.end()),
      options_(options) {
  order_.resize(index_.size());
  std::iota(order_.begin(), order_.end(), 0);
  positions_ = order_;
  // One more than are ready: the user's loop still holds a minibatch while it asks for the next.
  buffers_ =
      std::make_shared<BufferPool>(options_.prefetch + 1, index_.most_header_bytes(), index_.most_staged_bytes());
}

ExtentPipeline::~ExtentPipeline() { stop(); }

void ExtentPipeline::set_order(std::vector<std::int64_t> order) {
  std::lock_guard lock(mutex_);
  if (std::ranges::any_of(row_sets_, &RowSet::has_cpu_tier))
    throw std::invalid_argument("the cpu tier's schedule fixes the order");
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
  start_threads(position, count);
}

void ExtentPipeline::start_threads(std::int64_t position, std::int64_t count) {
  buffers_->reopen();
  readers_.clear();  // one whose read failed cannot go on
  for (const RowSet& rows : row_sets_) readers_.push_back(rows.make_reader(options_.verify));
  auto stream =
      std::make_unique<ChunkStream>(*file_, trace_, [this](std::uint64_t offset) { return position_of(offset); });
  {
    std::lock_guard lock(mutex_);
    failure_ = nullptr;
    stream_ = std::move(stream);
    running_ = true;
    paused_ = false;
    allowed_ = 0;
    next_allowed_ = position;
    allow(count);
  }
  assembler_ = std::thread([this, position] { assemble_all(position); });
}

void ExtentPipeline::extend(std::int64_t count) {
  require_own_process();
  std::lock_guard control(control_mutex_);
  if (paused_) return start_threads(next_allowed_, count);
  {
    std::lock_guard lock(mutex_);
    if (stream_ != nullptr) allow(count);
  }
  ready_changed_.notify_all();
}

void ExtentPipeline::pause() {
  require_own_process();
  std::lock_guard control(control_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (!running_) return;
    if (allowed_ > 0 || !ready_.empty()) throw std::invalid_argument("minibatches are still to come");
  }
  stop_threads();
  buffers_->free_idle();
  paused_ = true;
}

// Under the lock: lets `count` more minibatches, and their extents, through.
void ExtentPipeline::allow(std::int64_t count) {
  allowed_ += count;
  std::vector<ByteRange> ranges;
  for (; count > 0; --count) {
    const std::int64_t extent = order_[unsign(next_allowed_)];
    ranges.push_back({unsign(index_[extent].offset), unsign(index_.extent_bytes(extent))});
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
    running_ = paused_ = false;
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
  return positions_[unsign(index_.extent_at(offset))];
}

void ExtentPipeline::throw_damaged(std::int64_t extent, const char* what) const {
  throw DamagedExtent("extent " + std::to_string(extent) + " of " + file_->path() + " is damaged: " + what);
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
  std::int64_t extent = 0;
  {
    std::unique_lock lock(mutex_);
    ready_changed_.wait(lock, [this] { return !running_ || allowed_ > 0; });
    clock_.begin(position, Stage::kWaitForConsumer);
    // A full queue ends read-ahead, not only a lack of buffers: the user may have taken many and given them back.
    ready_changed_.wait(lock, [this] { return !running_ || ready_.size() < options_.prefetch; });
    if (!running_) return false;
    extent = order_[unsign(position)];  // only now: the order may change before it is allowed
  }
  StagedMinibatch minibatch{position, extent, buffers_->acquire(), unsign(index_[extent].header_bytes), {}};
  if (minibatch.buffer == nullptr) return false;

  clock_.enter(Stage::kHeader);
  if (!copy_header(extent, minibatch.buffer->header())) return false;
  take_rows(extent, minibatch);

  clock_.enter(Stage::kGather);
  for (std::size_t k = 0; k < row_sets_.size(); ++k) row_sets_[k].gather(minibatch.rows[k].data(), options_.threads);
  clock_.enter(Stage::kScatter);
  if (!scatter(extent, minibatch)) return false;
  clock_.end();

  {
    std::lock_guard lock(mutex_);
    --allowed_;
    ready_.push_back(std::move(minibatch));
  }
  ready_changed_.notify_all();
  return true;
}

// Takes the next `bytes` of the stream, a piece at a time. False when the pipeline is stopped.
template <typename Take>
bool ExtentPipeline::consume(std::size_t bytes, const Take& take) {
  for (std::size_t done = 0; done < bytes;) {
    std::span<const std::byte> piece = peek();
    if (piece.empty()) return false;
    piece = piece.first(std::min(piece.size(), bytes - done));
    take(piece, done);
    stream_->consume(piece.size());
    done += piece.size();
  }
  return true;
}

bool ExtentPipeline::copy_header(std::int64_t extent, std::byte* header) {
  const std::size_t header_bytes = unsign(index_[extent].header_bytes);
  const bool complete = consume(header_bytes, [&](std::span<const std::byte> piece, std::size_t offset) {
    std::memcpy(header + offset, piece.data(), piece.size());
  });
  if (!complete) return false;
  if (crc32c({header, header_bytes}, 0) != static_cast<std::uint32_t>(index_[extent].header_crc32c)) {
    throw_damaged(extent, "its header does not have the checksum that was written");
  }
  return true;
}

// Reads from the header where all rows come from and go.
void ExtentPipeline::take_rows(std::int64_t extent, StagedMinibatch& minibatch) {
  const std::vector<std::size_t> staging = index_.staging(extent);
  RowCounts total;
  for (std::size_t k = 0; k < row_sets_.size(); ++k) {
    RowSet& rows = row_sets_[k];
    const char* const fault = rows.take(index_.rows(extent)[k], minibatch.buffer->header());
    if (fault != nullptr) throw_damaged(extent, fault);
    minibatch.rows.emplace_back(minibatch.buffer->rows() + staging[k], rows.num_staged() * rows.row_bytes());
    total += rows.counts();
  }
  std::lock_guard lock(mutex_);
  stats_.rows += total;
}

// The next piece of the stream, or many where so many wait that starting threads for them pays; `limit` bytes at most.
// Empty when the pipeline is stopped.
std::vector<std::span<const std::byte>> ExtentPipeline::peek_pieces(std::size_t limit) {
  if (peek().empty()) return {};
  std::vector<std::span<const std::byte>> pieces = stream_->peek_all_ready(kMaxPiecesPerThread * options_.threads);
  if (options_.threads == 1 || pieces.size() < 2 * kMinPiecesPerThread) pieces.resize(1);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    pieces[i] = pieces[i].first(std::min(pieces[i].size(), limit));
    limit -= pieces[i].size();
    if (limit == 0) pieces.resize(i + 1);
  }
  return pieces;
}

// Moves the rows of one set, the next `rows_bytes` of the stream, to their places as chunks arrive, and computes their
// checksum. Where chunks wait because the disk is faster than one thread, threads share them. False when stopped.
bool ExtentPipeline::scatter_rows(const RowSet& rows, std::size_t rows_bytes, std::byte* staged, std::uint32_t& crc) {
  for (std::size_t done = 0; done < rows_bytes;) {
    const std::vector<std::span<const std::byte>> pieces = peek_pieces(rows_bytes - done);
    if (pieces.empty()) return false;
    std::vector<std::size_t> offsets;
    for (const std::span<const std::byte> piece : pieces) {
      offsets.push_back(done);
      done += piece.size();
    }
    std::vector<std::uint32_t> checksums(pieces.size(), 0);
    std::atomic<std::size_t> next{0};
    const std::size_t threads = std::clamp<std::size_t>(pieces.size() / kMinPiecesPerThread, 1, options_.threads);
    run_on_threads(static_cast<unsigned>(threads), [&] {
      for (std::size_t i = next++; i < pieces.size(); i = next++) {
        if (options_.verify) checksums[i] = crc32c(pieces[i], 0);
        rows.scatter(pieces[i], offsets[i], staged);
      }
      finish_streaming();
    });
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      crc = crc32c_combine(crc, checksums[i], pieces[i].size());
      stream_->consume(pieces[i].size());
    }
  }
  return true;
}

// Reads the rows whose numbers are next in the stream, and moves them to their places as they arrive. False when
// stopped.
bool ExtentPipeline::fetch_rows(std::int64_t extent, std::size_t row_set, std::byte* staged) {
  std::vector<RowNumber> numbers(unsign(index_.rows(extent)[row_set].num_rows));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(numbers));
  const bool complete = consume(bytes.size(), [&](std::span<const std::byte> piece, std::size_t offset) {
    std::memcpy(bytes.data() + offset, piece.data(), piece.size());
  });
  if (!complete) return false;
  if (crc32c(bytes, 0) != static_cast<std::uint32_t>(index_.rows(extent)[row_set].rows_crc32c)) {
    throw_damaged(extent, "the numbers of its rows do not have the checksum that was written");
  }
  std::vector<RowRequest> requests(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) requests[i] = {numbers[i], static_cast<std::int32_t>(i)};
  const RowSet& rows = row_sets_[row_set];
  const ReadCounts counts = readers_[row_set]->read(requests, [&](std::int32_t place, std::span<const std::byte> row) {
    rows.scatter(row, unsign(place) * rows.row_bytes(), staged);
  });
  finish_streaming();
  std::lock_guard lock(mutex_);
  stats_.read_bytes += static_cast<std::int64_t>(counts.bytes);
  stats_.read_requests += static_cast<std::int64_t>(counts.requests);
  return true;
}

// Moves rows from the stream to their places as chunks arrive.
bool ExtentPipeline::scatter(std::int64_t extent, const StagedMinibatch& minibatch) {
  const auto skip = [](std::span<const std::byte>, std::size_t) {};
  std::size_t position = unsign(index_[extent].header_bytes);  // in the extent
  for (std::size_t k = 0; k < row_sets_.size(); ++k) {
    const RowsRecord& record = index_.rows(extent)[k];
    const RowSet& rows = row_sets_[k];
    const std::size_t rows_bytes = index_.stored_rows_bytes(extent, k);
    if (!consume(unsign(record.rows_offset) - position, skip)) return false;
    position = unsign(record.rows_offset) + rows_bytes;
    if (readers_[k] != nullptr) {
      if (!fetch_rows(extent, k, minibatch.rows[k].data())) return false;
      continue;
    }
    std::uint32_t crc = 0;
    if (!scatter_rows(rows, rows_bytes, minibatch.rows[k].data(), crc)) return false;
    if (options_.verify && crc != static_cast<std::uint32_t>(record.rows_crc32c)) {
      throw_damaged(extent, "its rows do not have the checksum that was written");
    }
  }
  return consume(unsign(index_.extent_bytes(extent)) - position, skip);
}

void ExtentPipeline::start_next_cycle() {
  for (RowSet& rows : row_sets_) rows.start_next_cycle();
}

}  // namespace diskgnn
