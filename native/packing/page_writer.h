// Files that are appended to in many places at once, past the page cache: each place collects whole pages in a buffer,
// threads write the buffers, and what does not fill a page yet waits in memory.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "files/direct_file.h"
#include "files/page_memory.h"

namespace diskgnn {

// Throws std::system_error when not everything could be written.
void write_all(int descriptor, std::span<const std::byte> data, std::int64_t offset);

// Has the system begin to write out what lies in the page cache of a file; 0 bytes are all up to the end. A hint.
void start_writing_out(int descriptor, std::int64_t offset, std::int64_t bytes);

// A file to write at given offsets, O_DIRECT where the file system has it. Made if it is not there; never cut short.
class OutputFile {
 public:
  // Throws std::system_error when the file cannot be opened.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

// Writes blocks in the background. kNumBlocks blocks are all the memory it ever takes.
class PageWriter {
 public:
  static constexpr std::size_t kBlockBytes = 1 << 20;
  static constexpr std::size_t kNumBlocks = 16;
  static constexpr unsigned kWriters = 4;

  PageWriter();
  ~PageWriter();  // closes
  PageWriter(const PageWriter&) = delete;
  PageWriter& operator=(const PageWriter&) = delete;

  // A block to fill, as soon as one is free. Throws what an earlier write threw.
  std::span<std::byte> take();

  // Queues the first `bytes` (0 for none) of a block that was taken, and frees it once they are written.
  void write(std::span<std::byte> block, std::size_t bytes, std::shared_ptr<const OutputFile> file,
             std::int64_t offset);

  // Waits until everything queued is written. Throws what a write threw.
  void finish();

  // Waits for what was queued, and joins the threads; whoever queues more writes it.
  void close();

 private:
  struct Job {
    std::span<std::byte> block;
    std::size_t bytes;
    std::shared_ptr<const OutputFile> file;
    std::int64_t offset;
  };

  void work();
  void run_next(std::unique_lock<std::mutex>& lock);

  PageMemory memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::span<std::byte>> free_;
  std::deque<Job> jobs_;
  std::exception_ptr failure_;
  bool stopping_ = false;
  std::vector<std::thread> writers_;
};

// Appends to one place of a file. The bytes before it on its page are in `tail` [kDirectAlignment], and so are,
// afterwards, those of the page that is not full yet: nobody else writes that page.
class PageAppender {
 public:
  // Continues at `offset`, and the CRC-32C `crc` of what was appended before.
  PageAppender(PageWriter& writer, std::shared_ptr<const OutputFile> file, std::int64_t offset,
               std::span<std::byte> tail, std::uint32_t crc);
  ~PageAppender();
  PageAppender(const PageAppender&) = delete;
  PageAppender& operator=(const PageAppender&) = delete;

  void append(std::span<const std::byte> data) {
    while (!data.empty()) {
      if (used_ == block_.size()) next_block();
      const std::size_t bytes = std::min(data.size(), block_.size() - used_);
      std::memcpy(block_.data() + used_, data.data(), bytes);
      used_ += bytes;
      data = data.subspan(bytes);
    }
  }

  // Of what was appended so far, by this and by those before it.
  std::uint32_t checksum();

  // Queues the pages that are full; with `flush` also the last one, filled up with zeros. Whoever appends to that page
  // later must have waited for `PageWriter::finish`: writes of one page have no order among them.
  void finish(bool flush);

 private:
  void next_block();

  PageWriter& writer_;
  std::shared_ptr<const OutputFile> file_;
  std::span<std::byte> tail_;
  std::span<std::byte> block_;  // empty: given back
  std::int64_t offset_;         // of the block in the file
  std::size_t used_;            // bytes of the block
  std::size_t summed_;          // of these, how many `crc_` covers
  std::uint32_t crc_;
};

}  // namespace diskgnn
