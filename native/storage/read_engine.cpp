#include "storage/read_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#ifdef DISKGNN_HAVE_LIBURING
#include <liburing.h>
#endif

namespace diskgnn {
namespace {

constexpr std::uint64_t kRangeChunkBytes = 1 << 20;
constexpr unsigned kMaxPoolThreads = 16;

[[noreturn]] void throw_read_error(int error, const DirectFile& file, std::uint64_t offset, std::uint64_t bytes) {
  throw std::system_error(
      error, std::generic_category(),
      "reading " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of " + file.path());
}

[[noreturn]] void throw_short_read(const DirectFile& file, const ReadRequest& request, std::uint64_t done) {
  throw std::system_error(EIO, std::generic_category(),
                          file.path() + " ends early: expected " + std::to_string(request.required_bytes) +
                              " bytes at offset " + std::to_string(request.offset) + ", found " + std::to_string(done));
}

// A direct read that stops between two multiples of the alignment has met the end of the file; asking for the rest
// from there would be refused.
bool met_end(const DirectFile& file, std::uint64_t done) { return file.is_direct() && done % kDirectAlignment != 0; }

class ThreadEngine final : public ReadEngine {
 public:
  ThreadEngine(const DirectFile& file, unsigned depth) : file_(file) {
    const unsigned wanted = std::min(depth, kMaxPoolThreads);
    threads_.reserve(wanted);
    try {
      for (unsigned i = 0; i < wanted; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;  // else those that started do the reading
    }
  }

  ~ThreadEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      queue_.clear();
    }
    queued_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(const ReadRequest& request) override {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(request);
    }
    queued_.notify_one();
  }

  std::uint64_t wait() override {
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return !done_.empty(); });
    const Completion completion = done_.front();
    done_.pop_front();
    lock.unlock();
    if (completion.error != 0) {
      throw_read_error(completion.error, file_, completion.request.offset, completion.request.destination.size());
    }
    if (completion.bytes < completion.request.required_bytes) {
      throw_short_read(file_, completion.request, completion.bytes);
    }
    return completion.request.tag;
  }

  const char* name() const override { return "threads"; }

 private:
  struct Completion {
    ReadRequest request;
    std::uint64_t bytes;
    int error;
  };

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      queued_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) return;
      const ReadRequest request = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const Completion completion = read(request);
      lock.lock();
      done_.push_back(completion);
      completed_.notify_one();
    }
  }

  Completion read(const ReadRequest& request) const {
    std::uint64_t done = 0;
    while (done < request.destination.size()) {
      const ssize_t count = pread(file_.descriptor(), request.destination.data() + done,
                                  request.destination.size() - done, static_cast<off_t>(request.offset + done));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return {request, done, errno};
      if (count == 0) break;
      done += static_cast<std::uint64_t>(count);
      if (done >= request.required_bytes || met_end(file_, done)) break;
    }
    return {request, done, 0};
  }

  const DirectFile& file_;
  std::mutex mutex_;
  std::condition_variable queued_, completed_;
  std::deque<ReadRequest> queue_;
  std::deque<Completion> done_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

#ifdef DISKGNN_HAVE_LIBURING

// Why reads cannot go through `ring`, which the kernel has set up; empty when they can. A policy may refuse
// io_uring_enter alone, and kernels before 5.6 set up rings without knowing IORING_OP_READ.
std::string ring_refusal(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                        io_uring_opcode_supported(probe, IORING_OP_READ_FIXED) != 0;
  io_uring_free_probe(probe);
  if (!can_read) {
    errno = EOPNOTSUPP;
    return "the kernel's io_uring cannot read (it is older than 5.6)";
  }
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  io_uring_cqe* completion = nullptr;
  int error = io_uring_submit_and_wait(&ring, 1);
  while (error == -EINTR) error = io_uring_submit_and_wait(&ring, 1);
  if (error < 0 || io_uring_peek_cqe(&ring, &completion) != 0) {
    errno = error < 0 ? -error : EIO;
    return std::string("the kernel refuses io_uring_enter: ") + std::strerror(errno);
  }
  io_uring_cqe_seen(&ring, completion);
  return {};
}

// Sets up a ring that reads can go through. Returns why there is none (with errno set) or nothing.
std::string open_ring(io_uring& ring, unsigned depth) {
  const int error = -io_uring_queue_init(depth, &ring, 0);
  if (error != 0) {
    errno = error;
    return std::string("the kernel refuses io_uring_setup: ") + std::strerror(error);
  }
  std::string refusal = ring_refusal(ring);
  if (!refusal.empty()) {
    const int cause = errno;
    io_uring_queue_exit(&ring);
    errno = cause;
  }
  return refusal;
}

class UringEngine final : public ReadEngine {
 public:
  UringEngine(const DirectFile& file, unsigned depth, std::span<std::byte> registered)
      : file_(file), slots_(depth), registered_(registered) {
    if (const std::string refusal = open_ring(ring_, depth); !refusal.empty()) {
      throw std::system_error(errno, std::generic_category(), refusal);
    }
    for (unsigned i = depth; i-- > 0;) free_slots_.push_back(i);
    if (!registered_.empty()) {
      const iovec region{registered_.data(), registered_.size()};
      // RLIMIT_MEMLOCK may forbid it: then every read pins its own pages, which is slower but no error.
      if (io_uring_register_buffers(&ring_, &region, 1) != 0) registered_ = {};
    }
  }

  ~UringEngine() override {
    while (in_kernel_ > 0) {
      io_uring_cqe* completion = nullptr;
      const int error = io_uring_submit_and_wait(&ring_, 1);
      if (error < 0 && error != -EINTR) break;
      while (io_uring_peek_cqe(&ring_, &completion) == 0) {
        io_uring_cqe_seen(&ring_, completion);
        --in_kernel_;
      }
    }
    io_uring_queue_exit(&ring_);
  }

  void submit(const ReadRequest& request) override {
    if (free_slots_.empty()) throw std::logic_error("more reads in flight than the engine's depth");
    const unsigned slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = {request, 0};
    enqueue(slot);
  }

  std::uint64_t wait() override {
    for (;;) {
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_, &completion) != 0) {
        const int error = io_uring_submit_and_wait(&ring_, 1);
        if (error < 0 && error != -EINTR) {
          throw std::system_error(-error, std::generic_category(), "io_uring_submit_and_wait");
        }
      }
      const auto slot = static_cast<unsigned>(completion->user_data);
      const int result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      --in_kernel_;
      Slot& state = slots_[slot];
      const ReadRequest& request = state.request;
      if (result == -EINTR || result == -EAGAIN) {
        enqueue(slot);
        continue;
      }
      if (result < 0) throw_read_error(-result, file_, request.offset, request.destination.size());
      state.done += static_cast<std::uint64_t>(result);
      if (state.done < request.required_bytes) {
        if (result == 0 || met_end(file_, state.done)) throw_short_read(file_, request, state.done);
        enqueue(slot);
        continue;
      }
      free_slots_.push_back(slot);
      return request.tag;
    }
  }

  const char* name() const override { return "io_uring"; }

 private:
  struct Slot {
    ReadRequest request;
    std::uint64_t done;
  };

  void enqueue(unsigned slot) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) throw std::logic_error("the submission queue is full");
    const Slot& state = slots_[slot];
    const std::span<std::byte> rest = state.request.destination.subspan(state.done);
    const std::uint64_t offset = state.request.offset + state.done;
    const bool fixed = !registered_.empty() && rest.data() >= registered_.data() &&
                       rest.data() + rest.size() <= registered_.data() + registered_.size();
    if (fixed) {
      io_uring_prep_read_fixed(entry, file_.descriptor(), rest.data(), static_cast<unsigned>(rest.size()), offset, 0);
    } else {
      io_uring_prep_read(entry, file_.descriptor(), rest.data(), static_cast<unsigned>(rest.size()), offset);
    }
    entry->user_data = slot;
    ++in_kernel_;
  }

  const DirectFile& file_;
  io_uring ring_{};
  std::vector<Slot> slots_;
  std::vector<unsigned> free_slots_;
  std::span<std::byte> registered_;
  unsigned in_kernel_ = 0;  // queued or submitted, not yet seen complete
};

#endif

}  // namespace

std::string io_uring_refusal() {
#ifdef DISKGNN_HAVE_LIBURING
  io_uring ring{};
  std::string refusal = open_ring(ring, 2);
  if (refusal.empty()) io_uring_queue_exit(&ring);
  return refusal;
#else
  return "diskgnn was built without liburing";
#endif
}

std::unique_ptr<ReadEngine> make_read_engine(EngineKind kind, const DirectFile& file, unsigned depth,
                                             std::span<std::byte> registered) {
#ifdef DISKGNN_HAVE_LIBURING
  if (kind != EngineKind::kThreads) {
    try {
      return std::make_unique<UringEngine>(file, depth, registered);
    } catch (const std::system_error&) {
      if (kind == EngineKind::kIoUring) throw;
    }
  }
#else
  static_cast<void>(registered);
  if (kind == EngineKind::kIoUring) {
    throw std::system_error(ENOSYS, std::generic_category(), io_uring_refusal());
  }
#endif
  return std::make_unique<ThreadEngine>(file, depth);
}

void read_ranges(const DirectFile& file, EngineKind kind, std::span<const ByteRange> ranges, std::uint64_t base,
                 std::span<std::byte> destination) {
  const std::unique_ptr<ReadEngine> engine = make_read_engine(kind, file, kRangeDepth, {});
  read_ranges(*engine, ranges, base, destination);
}

void read_ranges(ReadEngine& engine, std::span<const ByteRange> ranges, std::uint64_t base,
                 std::span<std::byte> destination) {
  unsigned in_flight = 0;
  for (const ByteRange& range : ranges) {
    const std::uint64_t end = range.offset + range.bytes;
    const std::uint64_t aligned_end = (end + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
    std::uint64_t offset = range.offset / kDirectAlignment * kDirectAlignment;
    if (offset < base || aligned_end - base > destination.size()) {
      throw std::invalid_argument("a range does not fit the destination");
    }
    while (offset < end) {
      const std::uint64_t bytes = std::min(kRangeChunkBytes, aligned_end - offset);
      if (in_flight == kRangeDepth) {
        engine.wait();
        --in_flight;
      }
      engine.submit({offset, destination.subspan(offset - base, bytes), std::min(bytes, end - offset), 0});
      ++in_flight;
      offset += bytes;
    }
  }
  for (; in_flight > 0; --in_flight) engine.wait();
}

}  // namespace diskgnn
