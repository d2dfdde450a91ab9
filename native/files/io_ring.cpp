#include "files/io_ring.h"

#ifdef DISKGNN_HAVE_IO_URING

#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace diskgnn {
namespace {

// The kernel may be short of memory, or of room for completions. Both come back when reads in flight complete.
constexpr unsigned kMostRefusals = 10'000;  // in a row, a millisecond apart

[[noreturn]] void throw_refusal(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

// Heads and tails are shared with the kernel: what lies between them is published by the side that moves its end.
unsigned acquire(unsigned* word) { return std::atomic_ref(*word).load(std::memory_order_acquire); }
void publish(unsigned* word, unsigned value) { std::atomic_ref(*word).store(value, std::memory_order_release); }

}  // namespace

IoRing::IoRing(unsigned depth) {
  descriptor_ = static_cast<int>(syscall(__NR_io_uring_setup, depth, &params_));
  if (descriptor_ < 0) throw_refusal(errno, "the kernel refuses io_uring_setup");
  try {
    check_reads();
    map();
    check_enter();
  } catch (...) {
    release();
    throw;
  }
}

IoRing::~IoRing() { release(); }

void IoRing::release() {
  if (!entries_.empty()) munmap(entries_.data(), entries_.size_bytes());
  if (!rings_.empty()) munmap(rings_.data(), rings_.size());
  close(descriptor_);
}

void IoRing::check_reads() const {
  constexpr unsigned kOperations = IORING_OP_READ + 1;
  static_assert(IORING_OP_READ_FIXED < IORING_OP_READ);
  // An io_uring_probe, then what the kernel says of each operation.
  alignas(io_uring_probe) std::array<std::byte, sizeof(io_uring_probe) + kOperations * sizeof(io_uring_probe_op)>
      answer{};
  const auto supported = [&](unsigned operation) {
    io_uring_probe_op told;
    std::memcpy(&told, answer.data() + sizeof(io_uring_probe) + operation * sizeof(told), sizeof(told));
    return (told.flags & IO_URING_OP_SUPPORTED) != 0;
  };
  if (syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_PROBE, answer.data(), kOperations) < 0 ||
      !supported(IORING_OP_READ) || !supported(IORING_OP_READ_FIXED) ||
      (params_.features & IORING_FEAT_SINGLE_MMAP) == 0) {
    throw_refusal(EOPNOTSUPP, "the kernel's io_uring cannot read (it is older than 5.6)");
  }
}

void IoRing::map() {
  const auto mapped = [this](std::size_t bytes, off_t offset) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor_, offset);
    if (memory == MAP_FAILED) throw_refusal(errno, "cannot map the rings of io_uring");
    return memory;
  };
  const std::size_t bytes = std::max(params_.sq_off.array + params_.sq_entries * sizeof(unsigned),
                                     params_.cq_off.cqes + params_.cq_entries * sizeof(io_uring_cqe));
  rings_ = {static_cast<std::byte*>(mapped(bytes, IORING_OFF_SQ_RING)), bytes};
  entries_ = {static_cast<io_uring_sqe*>(mapped(params_.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES)),
              params_.sq_entries};
  results_ = {reinterpret_cast<const io_uring_cqe*>(rings_.data() + params_.cq_off.cqes), params_.cq_entries};
  for (unsigned i = 0; i < params_.sq_entries; ++i) word(params_.sq_off.array)[i] = i;
}

void IoRing::check_enter() {
  next_entry(IORING_OP_NOP);
  publish(word(params_.sq_off.tail), 1);
  while (!take().has_value()) submit_and_wait();
}

unsigned* IoRing::word(std::uint32_t offset) const { return reinterpret_cast<unsigned*>(rings_.data() + offset); }

bool IoRing::register_memory(std::span<std::byte> memory) {
  const iovec region{memory.data(), memory.size()};
  return syscall(__NR_io_uring_register, descriptor_, IORING_REGISTER_BUFFERS, &region, 1) == 0;
}

// The entry at the tail, cleared. The kernel sees it when the tail has moved past it.
io_uring_sqe& IoRing::next_entry(std::uint8_t operation) {
  const unsigned tail = *word(params_.sq_off.tail);
  if (tail - acquire(word(params_.sq_off.head)) == params_.sq_entries) {
    throw std::logic_error("the submission queue is full");
  }
  io_uring_sqe& entry = entries_[tail & (params_.sq_entries - 1)];
  entry = {};
  entry.opcode = operation;
  return entry;
}

void IoRing::queue_read(int descriptor, std::span<std::byte> destination, std::uint64_t offset, bool registered,
                        std::uint64_t tag) {
  io_uring_sqe& entry = next_entry(registered ? IORING_OP_READ_FIXED : IORING_OP_READ);
  entry.fd = descriptor;
  entry.off = offset;
  entry.addr = reinterpret_cast<std::uintptr_t>(destination.data());
  entry.len = static_cast<std::uint32_t>(destination.size());
  entry.user_data = tag;
  unsigned* tail = word(params_.sq_off.tail);
  publish(tail, *tail + 1);
}

void IoRing::submit_and_wait() {
  const unsigned queued = *word(params_.sq_off.tail) - acquire(word(params_.sq_off.head));
  if (syscall(__NR_io_uring_enter, descriptor_, queued, 1, IORING_ENTER_GETEVENTS, nullptr, 0) >= 0) {
    refusals_ = 0;
  } else if ((errno == EAGAIN || errno == EBUSY) && ++refusals_ < kMostRefusals) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } else if (errno != EINTR) {
    throw_refusal(errno, "the kernel refuses io_uring_enter");
  }
}

std::optional<IoRing::Completion> IoRing::take() {
  unsigned* head = word(params_.cq_off.head);
  if (*head == acquire(word(params_.cq_off.tail))) return std::nullopt;
  const io_uring_cqe& result = results_[*head & (params_.cq_entries - 1)];
  const Completion completion{result.user_data, result.res};
  publish(head, *head + 1);
  return completion;
}

}  // namespace diskgnn

#endif
