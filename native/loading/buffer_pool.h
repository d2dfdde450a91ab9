// The memory that minibatches are staged in: allocated once, leased out, given back when the user drops the minibatch.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "files/direct_file.h"
#include "files/page_memory.h"

namespace diskgnn {

class Buffer {
 public:
  Buffer(std::size_t header_bytes, std::size_t rows_bytes)
      : header_bytes_((header_bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment),
        memory_(header_bytes_ + rows_bytes) {}
  std::byte* header() const { return memory_.bytes().data(); }
  std::byte* rows() const { return memory_.bytes().data() + header_bytes_; }
  std::span<std::byte> memory() const { return memory_.bytes(); }
  void forget() { memory_.forget(); }

  bool page_locked = false;  // by the pool's owner: must not be freed before it is unlocked
  bool with_user = false;    // the pool's

 private:
  std::size_t header_bytes_;
  PageMemory memory_;
};

// Has `limit` buffers, of which the user holds one while asking for the next. A user who keeps more minibatches alive
// gets that many buffers more. When they come back, at most `limit` stay free.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool(std::size_t limit, std::size_t header_bytes, std::size_t rows_bytes);

  // Blocks until a buffer is free or may be allocated, or `close` (then null).
  std::shared_ptr<Buffer> acquire();
  void close();
  void reopen();

  // The user takes a minibatch in this buffer; and asks for the next one: what is held then is being kept.
  void hand_out(Buffer& buffer);
  void count_kept();

  // Until the next `acquire`, the system may take the memory of free buffers. For pauses in which nothing is staged.
  void release_idle();

  // Frees them, and until then those that come back; but those that are page-locked stay.
  void free_idle();

  // Allocates all buffers that are kept, to be page-locked; before any is leased.
  std::vector<std::span<std::byte>> allocate_locked();

 private:
  static void forget(Buffer& buffer);
  void free_all_but(std::size_t count);
  void give_back(std::unique_ptr<Buffer> buffer);

  const pid_t owner_ = getpid();
  const std::size_t limit_, header_bytes_, rows_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Buffer>> free_;
  std::size_t allocated_ = 0, with_user_ = 0;
  std::size_t kept_ = 0;  // by the user, beyond the one that `limit_` foresees
  bool locked_ = false;
  bool closed_ = false;
  bool releasing_ = false, freeing_ = false;
};

}  // namespace diskgnn
