#include "files/row_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "files/read_attempts.h"
#include "files/write_failed.h"

namespace diskgnn {
namespace {

constexpr std::int64_t kPageBytes = 4096;  // what rows that ascend are grouped by; the kernel's own may be larger

// Has the kernel read the pages of these rows, without waiting.
void ask_for(int descriptor, std::int64_t row_bytes, std::span<const std::int64_t> rows) {
#ifdef POSIX_FADV_WILLNEED
  std::int64_t first = 0, end = 0;  // pages that follow each other
  const auto ask = [&] {
    if (end > first) {
      ::posix_fadvise(descriptor, first * kPageBytes, (end - first) * kPageBytes, POSIX_FADV_WILLNEED);
    }
  };
  for (const std::int64_t row : rows) {
    const std::int64_t page = row * row_bytes / kPageBytes, next = ((row + 1) * row_bytes - 1) / kPageBytes + 1;
    if (page < first || page > end) {
      ask();
      first = page;
      end = next;
    }
    end = std::max(end, next);
  }
  ask();
#endif
}

// Calls `move(offset in the row, bytes left, offset in the file)`, pread or pwrite, until the whole row is moved.
template <typename Error, typename Move>
void move_row(std::uint64_t row_bytes, std::int64_t row, const Move& move) {
  const std::uint64_t start = static_cast<std::uint64_t>(row) * row_bytes;
  for (std::uint64_t done = 0; done < row_bytes;) {
    const ssize_t moved = move(done, row_bytes - done, static_cast<off_t>(start + done));
    if (moved > 0) {
      done += static_cast<std::uint64_t>(moved);
    } else if (moved == 0) {
      throw Error(EIO, std::generic_category(), "the file ends within a row");
    } else if (errno != EINTR) {
      throw Error(errno, std::generic_category());
    }
  }
}

}  // namespace

void read_rows(int descriptor, std::uint64_t row_bytes, std::span<const std::int64_t> rows, std::byte* destination) {
  ask_for(descriptor, static_cast<std::int64_t>(row_bytes), rows);
  for (const std::int64_t row : rows) {
    move_row<std::system_error>(row_bytes, row, [&](std::uint64_t done, std::uint64_t left, off_t offset) {
      ssize_t count = 0;
      unsigned attempts = 0;
      do {
        count = ::pread(descriptor, destination + done, left, offset);
      } while (count < 0 && worth_another_attempt(errno) && ++attempts < kReadAttempts);
      return count;
    });
    destination += row_bytes;
  }
}

void write_rows(int descriptor, std::uint64_t row_bytes, std::span<const std::int64_t> rows, const std::byte* source) {
  for (const std::int64_t row : rows) {
    move_row<WriteFailed>(row_bytes, row, [&](std::uint64_t done, std::uint64_t left, off_t offset) {
      return ::pwrite(descriptor, source + done, left, offset);
    });
    source += row_bytes;
  }
}

}  // namespace diskgnn
