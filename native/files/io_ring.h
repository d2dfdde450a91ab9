// The kernel's io_uring, for reads: its three system calls, without liburing. Of that library reads need five
// functions, and without it io_uring is in every build, also where nobody may install a library, and for every
// architecture.
#pragma once

#ifdef __linux__
#include <linux/io_uring.h>
#endif

// These headers came with Linux 5.6, as the reads did. What the running kernel can do is asked when a ring is opened.
#ifdef IORING_FEAT_RW_CUR_POS
#define DISKGNN_HAVE_IO_URING 1

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace diskgnn {

// Used by one thread. Move it and the kernel would not know: it stays where it is.
class IoRing {
 public:
  struct Completion {
    std::uint64_t tag;
    int result;  // bytes read, or -errno
  };

  // Room for `depth` reads in flight. Throws std::system_error that says what the kernel refuses. Policies may refuse
  // each of the calls, and kernels before 5.6 set up rings without knowing reads: so all are tried.
  explicit IoRing(unsigned depth);
  ~IoRing();
  IoRing(const IoRing&) = delete;
  IoRing& operator=(const IoRing&) = delete;

  // Pins memory that is read to often, once instead of at each read. False where RLIMIT_MEMLOCK forbids it.
  bool register_memory(std::span<std::byte> memory);

  // Queues a read; `registered` says that the destination lies in the registered memory. Throws std::logic_error where
  // more than `depth` are in flight.
  void queue_read(int descriptor, std::span<std::byte> destination, std::uint64_t offset, bool registered,
                  std::uint64_t tag);

  // Gives the kernel what is queued and waits until something completes, or a signal comes, or the
  // kernel asks to try again. Throws std::system_error.
  void submit_and_wait();

  std::optional<Completion> take();  // a read that is complete, if there is one

 private:
  void map();
  void check_reads() const;
  void check_enter();
  void release();
  io_uring_sqe& next_entry(std::uint8_t operation);
  unsigned* word(std::uint32_t offset) const;

  io_uring_params params_{};
  int descriptor_ = -1;
  unsigned refusals_ = 0;                  // of io_uring_enter, in a row
  std::span<std::byte> rings_;             // both rings, shared with the kernel
  std::span<io_uring_sqe> entries_;        // what the submission ring's indices mean
  std::span<const io_uring_cqe> results_;  // in rings_
};

}  // namespace diskgnn

#endif
