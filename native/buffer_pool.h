// The memory that minibatches are staged in: allocated once, leased out, given back when the user drops the minibatch.
#pragma once

#include <unistd.h>

#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace diskgnn {

// Anonymous memory, page-aligned, with huge pages where the system has them. Move-only.
class PageMemory {
 public:
  explicit PageMemory(std::size_t bytes);
  ~PageMemory();
  PageMemory(PageMemory&& other) noexcept;
  PageMemory& operator=(PageMemory&&) = delete;
  PageMemory(const PageMemory&) = delete;
  PageMemory& operator=(const PageMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

class Buffer {
 public:
  Buffer(std::size_t header_bytes, std::size_t rows_bytes)
      : header_bytes_((header_bytes + 4095) / 4096 * 4096), memory_(header_bytes_ + rows_bytes) {}
  std::byte* header() const { return memory_.bytes().data(); }
  std::byte* rows() const { return memory_.bytes().data() + header_bytes_; }
  std::span<std::byte> memory() const { return memory_.bytes(); }

  bool page_locked = false;  // by the pool's owner: must not be freed before it is unlocked

 private:
  std::size_t header_bytes_;
  PageMemory memory_;
};

// At most `limit` buffers are kept. Who keeps more minibatches than that alive gets further buffers, which are freed
// when they come back: slower, but a loop that collects minibatches works.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool(std::size_t limit, std::size_t header_bytes, std::size_t rows_bytes);

  // Blocks until a buffer is free, `set_starving(true)` asks for one at any price, or `close` (then null).
  std::shared_ptr<Buffer> acquire();
  void set_starving(bool starving);
  void close();
  void reopen();

  // Between epochs nothing is staged: frees what is here and what comes back, until the next `acquire`.
  void rest();

  // Allocates all buffers that are kept, to be page-locked; before any is leased.
  std::vector<std::span<std::byte>> allocate_locked();

 private:
  void give_back(std::unique_ptr<Buffer> buffer);

  const pid_t owner_ = getpid();
  const std::size_t limit_, header_bytes_, rows_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Buffer>> free_;
  std::size_t allocated_ = 0;
  bool starving_ = false;
  bool closed_ = false;
  bool resting_ = false;
};

}  // namespace diskgnn
