// The online half: one thread reads extents ahead, one assembles minibatches from the tiers, the user takes them.
#pragma once

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "files/byte_source.h"
#include "loading/buffer_pool.h"
#include "loading/chunk_stream.h"
#include "loading/extent_index.h"
#include "loading/row_set.h"
#include "loading/stage_clock.h"

namespace diskgnn {

// An extent that is not what was packed.
class DamagedExtent : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PipelineOptions {
  std::size_t prefetch = 2;  // minibatches assembled ahead of the user
  unsigned threads = 1;      // that gather cached rows, and scatter rows of which many wait
  bool verify = true;        // compare rows with their checksum, too
};

// A minibatch whose rows are staged. Dropping it gives its buffer back.
struct StagedMinibatch {
  std::int64_t position = 0;  // in the sequence
  std::int64_t extent = 0;    // in the file
  std::shared_ptr<Buffer> buffer;
  std::size_t header_bytes = 0;
  std::vector<std::span<std::byte>> rows;  // of each row set, in the buffer: in input order, device rows left out
};

struct PipelineStats {
  RowCounts rows;  // of all row sets
  std::int64_t read_bytes = 0, read_requests = 0;
  double read_wait_seconds = 0;    // the assembler waited for the disk
  double header_seconds = 0;       // headers copied and checked, inputs split by tier
  double gather_seconds = 0;       // rows from memory tiers
  double scatter_seconds = 0;      // rows from the extent, and admissions
  double buffer_wait_seconds = 0;  // the assembler waited for the user, though more was to be assembled
  double wait_seconds = 0;         // the user waited
};

// Produces the minibatches of a sequence from any position on, and after the last one the first again, as many as
// `start` and `extend` allow. One thread calls `next`.
class ExtentPipeline {
 public:
  // `tiers` are those of each row set. Throws std::invalid_argument when they, the index and the file do not fit.
  ExtentPipeline(std::unique_ptr<ByteSource> file, std::vector<ExtentRecord> extents, std::vector<RowsRecord> rows,
                 std::span<const Tiers> tiers, PipelineOptions options);
  ~ExtentPipeline();
  ExtentPipeline(const ExtentPipeline&) = delete;
  ExtentPipeline& operator=(const ExtentPipeline&) = delete;

  // From now on, position i of the sequence is extent order[i]. Throws std::invalid_argument if there is a cpu tier,
  // whose schedule fixes the order, or if minibatches are allowed that were not handed out.
  void set_order(std::vector<std::int64_t> order);

  // Starts at `position`, to assemble `count` minibatches; the cpu tier holds what the schedule says for it.
  void start(std::int64_t position, std::int64_t count);

  // Goes on for `count` more. Until then nothing is staged.
  void extend(std::int64_t count);

  // Joins the threads, and gives all memory back but the tiers', until `extend`: other work (evaluation) needs as much.
  // Minibatches that are allowed must have been handed out.
  void pause();

  // Joins the threads; the cpu tier's content is undefined afterwards. Idempotent. A waiting `next` throws.
  void stop();

  // False after a fork, where the threads, and those that wait on locks of this object, are in the parent. Then `stop`
  // does nothing and the other methods throw. The object must be leaked there: destroying a condition variable waits
  // for its waiters.
  bool in_own_process() const { return owner_ == getpid(); }

  // The next minibatch, or nothing within `timeout`. Rethrows what went wrong in a thread; std::runtime_error when the
  // pipeline is not running.
  std::optional<StagedMinibatch> next(std::chrono::milliseconds timeout);

  PipelineStats stats() const;

  // Keeps events from now on, of which `take_trace` returns those since its last call.
  void start_tracing() { trace_.start(); }
  StageTrace::Taken take_trace() { return trace_.take(); }
  BufferPool& buffers() { return *buffers_; }

 private:
  std::span<const std::byte> peek();
  std::vector<std::span<const std::byte>> peek_pieces(std::size_t limit);
  bool scatter_rows(const RowSet& rows, std::size_t rows_bytes, std::byte* staged, std::uint32_t& crc);
  bool fetch_rows(std::int64_t extent, std::size_t row_set, std::byte* staged);
  void allow(std::int64_t count);
  std::int64_t position_of(std::uint64_t offset) const;
  void start_threads(std::int64_t position, std::int64_t count);
  void stop_threads();
  void add_reads(PipelineStats& stats) const;
  void assemble_all(std::int64_t position);
  bool assemble(std::int64_t position);
  bool copy_header(std::int64_t extent, std::byte* header);
  void take_rows(std::int64_t extent, StagedMinibatch& minibatch);
  bool scatter(std::int64_t extent, const StagedMinibatch& minibatch);
  template <typename Take>
  bool consume(std::size_t bytes, const Take& take);
  void start_next_cycle();
  void require_own_process() const;
  [[noreturn]] void throw_damaged(std::int64_t extent, const char* what) const;

  const pid_t owner_ = getpid();
  const std::unique_ptr<ByteSource> file_;
  const ExtentIndex index_;
  std::vector<RowSet> row_sets_;         // the assembler's
  std::vector<std::int64_t> order_;      // position in the sequence to extent, a permutation
  std::vector<std::int64_t> positions_;  // and its inverse; neither changes while anything is allowed
  PipelineOptions options_;
  std::shared_ptr<BufferPool> buffers_;
  StageTrace trace_;
  StageClock clock_{trace_};                         // the assembler's
  std::vector<std::unique_ptr<RowReader>> readers_;  // of each row set, the assembler's; null where extents have rows
  std::unique_ptr<ChunkStream> stream_;
  std::thread assembler_;

  std::mutex control_mutex_;  // start and stop come one at a time
  mutable std::mutex mutex_;
  std::condition_variable ready_changed_;
  std::deque<StagedMinibatch> ready_;
  std::exception_ptr failure_;
  bool running_ = false;
  bool paused_ = false;            // `extend` starts the threads again
  std::int64_t allowed_ = 0;       // minibatches still to assemble
  std::int64_t next_allowed_ = 0;  // position of the first that is not allowed yet
  PipelineStats stats_;
};

}  // namespace diskgnn
