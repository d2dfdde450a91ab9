#include "files/read_engine.h"

#include <sys/stat.h>
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

#include "files/io_ring.h"
#include "files/read_attempts.h"

namespace diskgnn {
namespace {

constexpr unsigned kMaxPoolThreads = 16;

[[noreturn]] void throw_read_error(int error, const DirectFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string what =
      "reading " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset) + " of " + file.path();
  if (worth_another_attempt(error) && error != EIO) {  // whatever it was, it is a disk that does not give its data
    what += " (" + std::generic_category().message(error) + ", again and again)";
    error = EIO;
  }
  throw std::system_error(error, std::generic_category(), what);
}

[[noreturn]] void throw_short_read(const DirectFile& file, const ReadRequest& request, std::uint64_t done) {
  throw TruncatedFile(file.path() + " ends early: expected " + std::to_string(request.required_bytes) +
                      " bytes at offset " + std::to_string(request.offset) + ", found " + std::to_string(done) +
                      "; it was truncated");
}

// A direct read that stops between two multiples of the alignment has met the end of the file; asking for the rest
// from there would be refused.
bool met_end(const DirectFile& file, std::uint64_t done) { return file.is_direct() && done % kDirectAlignment != 0; }

// Whether a file has bytes from `offset` on. A read that stopped there has not met the end, whatever it was told.
bool goes_on(const DirectFile& file, std::uint64_t offset) {
  struct stat status{};
  return fstat(file.descriptor(), &status) == 0 && S_ISREG(status.st_mode) &&
         offset < static_cast<std::uint64_t>(status.st_size);
}

// Where a read that stopped after `done` bytes begins again: direct reads begin at multiples of the alignment.
std::uint64_t begin_again(std::uint64_t done) { return done - done % kDirectAlignment; }

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
    unsigned attempts = 1;
    while (done < request.destination.size()) {
      const ssize_t count = pread(file_.descriptor(), request.destination.data() + done,
                                  request.destination.size() - done, static_cast<off_t>(request.offset + done));
      if (count < 0 && (errno == EINTR || (worth_another_attempt(errno) && attempts++ < kReadAttempts))) continue;
      if (count < 0) return {request, done, errno};
      done += static_cast<std::uint64_t>(count);
      if (done >= request.required_bytes) break;
      if (count == 0 || met_end(file_, done)) {
        if (!goes_on(file_, request.offset + done)) break;
        if (attempts++ >= kReadAttempts) return {request, done, EIO};
        done = begin_again(done);
      }
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

#ifdef DISKGNN_HAVE_IO_URING

class UringEngine final : public ReadEngine {
 public:
  UringEngine(const DirectFile& file, unsigned depth, std::span<std::byte> registered)
      : file_(file), ring_(depth), slots_(depth), registered_(registered) {
    for (unsigned i = depth; i-- > 0;) free_slots_.push_back(i);
    // Refused memory is no error: every read pins its own pages then, which is slower.
    if (!registered_.empty() && !ring_.register_memory(registered_)) registered_ = {};
  }

  ~UringEngine() override {
    try {
      for (; in_kernel_ > 0; --in_kernel_) wait_for_completion();
    } catch (const std::system_error&) {  // the ring answers no more; closing it ends what is in flight
    }
  }

  void submit(const ReadRequest& request) override {
    if (free_slots_.empty()) throw std::logic_error("more reads in flight than the engine's depth");
    const unsigned slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = {request, 0, 1};
    enqueue(slot);
  }

  std::uint64_t wait() override {
    for (;;) {
      const auto [tag, result] = wait_for_completion();
      const auto slot = static_cast<unsigned>(tag);
      --in_kernel_;
      Slot& state = slots_[slot];
      const ReadRequest& request = state.request;
      if (result == -EINTR || (worth_another_attempt(-result) && state.attempts++ < kReadAttempts)) {
        enqueue(slot);
        continue;
      }
      if (result < 0) throw_read_error(-result, file_, request.offset, request.destination.size());
      state.done += static_cast<std::uint64_t>(result);
      if (state.done < request.required_bytes) {
        if (result == 0 || met_end(file_, state.done)) {
          if (!goes_on(file_, request.offset + state.done)) throw_short_read(file_, request, state.done);
          if (state.attempts++ >= kReadAttempts) {
            throw_read_error(EIO, file_, request.offset, request.destination.size());
          }
          state.done = begin_again(state.done);
        }
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
    unsigned attempts;
  };

  IoRing::Completion wait_for_completion() {
    for (;;) {
      if (const auto completion = ring_.take()) return *completion;
      ring_.submit_and_wait();
    }
  }

  void enqueue(unsigned slot) {
    const Slot& state = slots_[slot];
    const std::span<std::byte> rest = state.request.destination.subspan(state.done);
    const std::uint64_t offset = state.request.offset + state.done;
    const bool fixed = !registered_.empty() && rest.data() >= registered_.data() &&
                       rest.data() + rest.size() <= registered_.data() + registered_.size();
    ring_.queue_read(file_.descriptor(), rest, offset, fixed, slot);
    ++in_kernel_;
  }

  const DirectFile& file_;
  IoRing ring_;
  std::vector<Slot> slots_;
  std::vector<unsigned> free_slots_;
  std::span<std::byte> registered_;
  unsigned in_kernel_ = 0;  // queued or submitted, not yet seen complete
};

#endif

}  // namespace

bool has_io_uring() {
#ifdef DISKGNN_HAVE_IO_URING
  return true;
#else
  return false;
#endif
}

std::string io_uring_refusal() {
#ifdef DISKGNN_HAVE_IO_URING
  try {
    const IoRing ring(2);
    return {};
  } catch (const std::system_error& refusal) {
    return refusal.what();
  }
#else
  return "diskgnn was built without io_uring (it is Linux's, and the build needs its headers of 5.6 or newer)";
#endif
}

std::unique_ptr<ReadEngine> make_read_engine(EngineKind kind, const DirectFile& file, unsigned depth,
                                             std::span<std::byte> registered) {
#ifdef DISKGNN_HAVE_IO_URING
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

}  // namespace diskgnn
