#include "packing/page_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "files/crc32c.h"
#include "files/write_failed.h"

namespace diskgnn {

void write_all(int descriptor, std::span<const std::byte> data, std::int64_t offset) {
  for (std::size_t done = 0; done < data.size();) {
    const ssize_t count =
        pwrite(descriptor, data.data() + done, data.size() - done, offset + static_cast<std::int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw WriteFailed(errno, std::generic_category(), "writing rows");
    done += static_cast<std::size_t>(count);
  }
}

void start_writing_out([[maybe_unused]] int descriptor, [[maybe_unused]] std::int64_t offset,
                       [[maybe_unused]] std::int64_t bytes) {
#ifdef __linux__
  sync_file_range(descriptor, offset, bytes, SYNC_FILE_RANGE_WRITE);
#endif
}

OutputFile::OutputFile(const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
  descriptor_ = open_direct(path, kFlags, 0644);
  if (descriptor_ < 0 && errno == EINVAL) descriptor_ = open(path.c_str(), kFlags, 0644);
  if (descriptor_ < 0) throw WriteFailed(errno, std::generic_category(), "cannot open " + path);
}

OutputFile::~OutputFile() { close(descriptor_); }

PageWriter::PageWriter() : memory_(kBlockBytes * kNumBlocks) {
  for (std::size_t i = 0; i < kNumBlocks; ++i) free_.push_back(memory_.bytes().subspan(i * kBlockBytes, kBlockBytes));
  try {
    for (unsigned i = 0; i < kWriters; ++i) writers_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // The system gives no more threads: those that started write; without any, whoever queues does.
  }
}

PageWriter::~PageWriter() { close(); }

void PageWriter::close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& writer : writers_) writer.join();
  writers_.clear();
}

std::span<std::byte> PageWriter::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !free_.empty() || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  const std::span<std::byte> block = free_.back();
  free_.pop_back();
  return block;
}

void PageWriter::write(std::span<std::byte> block, std::size_t bytes, std::shared_ptr<const OutputFile> file,
                       std::int64_t offset) {
  std::unique_lock lock(mutex_);
  jobs_.push_back({block, bytes, std::move(file), offset});
  if (writers_.empty()) {
    run_next(lock);
  } else {
    changed_.notify_all();
  }
}

void PageWriter::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return free_.size() == kNumBlocks || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void PageWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !jobs_.empty() || stopping_; });
    if (jobs_.empty()) return;
    run_next(lock);
  }
}

void PageWriter::run_next(std::unique_lock<std::mutex>& lock) {
  Job job = std::move(jobs_.front());
  jobs_.pop_front();
  lock.unlock();
  std::exception_ptr failure;
  try {
    if (job.bytes > 0) {
      write_all(job.file->descriptor(), job.block.first(job.bytes), job.offset);
      // Without O_DIRECT, start the write-back now: dirty pages that pile up stall everybody at the memory limit.
      start_writing_out(job.file->descriptor(), job.offset, static_cast<std::int64_t>(job.bytes));
    }
  } catch (...) {
    failure = std::current_exception();
  }
  job.file.reset();
  lock.lock();
  if (failure_ == nullptr) failure_ = failure;
  free_.push_back(job.block);
  changed_.notify_all();
}

PageAppender::PageAppender(PageWriter& writer, std::shared_ptr<const OutputFile> file, std::int64_t offset,
                           std::span<std::byte> tail, std::uint32_t crc)
    : writer_(writer),
      file_(std::move(file)),
      tail_(tail),
      block_(writer.take()),
      used_(static_cast<std::size_t>(offset) % kDirectAlignment),
      summed_(used_),
      crc_(crc) {
  offset_ = offset - static_cast<std::int64_t>(used_);
  std::memcpy(block_.data(), tail_.data(), used_);
}

PageAppender::~PageAppender() {
  if (!block_.empty()) writer_.write(block_, 0, nullptr, 0);
}

std::uint32_t PageAppender::checksum() {
  crc_ = crc32c(block_.subspan(summed_, used_ - summed_), crc_);
  summed_ = used_;
  return crc_;
}

void PageAppender::next_block() {
  checksum();
  writer_.write(std::exchange(block_, {}), used_, file_, offset_);
  offset_ += static_cast<std::int64_t>(used_);
  used_ = summed_ = 0;
  block_ = writer_.take();
}

void PageAppender::finish(bool flush) {
  const std::size_t open_bytes = used_ % kDirectAlignment;
  std::memcpy(tail_.data(), block_.data() + used_ - open_bytes, open_bytes);
  std::size_t bytes = used_ - open_bytes;
  if (flush && open_bytes > 0) {
    std::memset(block_.data() + used_, 0, kDirectAlignment - open_bytes);
    bytes += kDirectAlignment;
  }
  writer_.write(std::exchange(block_, {}), bytes, std::move(file_), offset_);
}

}  // namespace diskgnn
