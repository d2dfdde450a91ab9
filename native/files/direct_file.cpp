#include "files/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <utility>

namespace diskgnn {

namespace {

// What a file is called in messages: one that is opened through a descriptor has a name of its own.
std::string name_of(const std::string& path) {
  if (!path.starts_with("/proc/self/fd/")) return path;
  std::string name(PATH_MAX, '\0');
  const ssize_t length = readlink(path.c_str(), name.data(), name.size());
  return length < 0 ? path : name.substr(0, static_cast<std::size_t>(length));
}

// Whether the disk and the file system of an open file take direct reads that are aligned to kDirectAlignment. Headers
// older than Linux 6.1 do not name what this asks for, so it stands here as the kernel's ABI has it.
bool takes_direct_reads(int descriptor) {
#ifdef STATX_BASIC_STATS
  constexpr unsigned kDioAlign = 0x2000;      // STATX_DIOALIGN
  constexpr std::size_t kDioOffset = 0x98;    // of stx_dio_mem_align and stx_dio_offset_align, 32 bits each
  std::array<std::uint32_t, 2> aligned_to{};  // memory, offset
  struct statx status{};
  static_assert(sizeof(status) == 256);
  if (statx(descriptor, "", AT_EMPTY_PATH, kDioAlign, &status) != 0 || (status.stx_mask & kDioAlign) == 0) {
    return true;  // an older kernel, or the file system does not say
  }
  std::memcpy(aligned_to.data(), reinterpret_cast<const char*>(&status) + kDioOffset, sizeof(aligned_to));
  return aligned_to[0] != 0 && aligned_to[1] != 0 && kDirectAlignment % aligned_to[0] == 0 &&
         kDirectAlignment % aligned_to[1] == 0;
#else
  static_cast<void>(descriptor);
  return true;
#endif
}

}  // namespace

int open_direct(const std::string& path, int flags, [[maybe_unused]] unsigned mode) {
#ifdef O_DIRECT
  return open(path.c_str(), flags | O_DIRECT, mode);
#else
  errno = EINVAL;
  return -1;
#endif
}

DirectFile::DirectFile(const std::string& path) : path_(name_of(path)) {
  descriptor_ = open_direct(path, O_RDONLY | O_CLOEXEC);
  if (descriptor_ >= 0 && !takes_direct_reads(descriptor_)) {
    close(descriptor_);
    descriptor_ = -1;
    errno = EINVAL;
  }
  if (descriptor_ < 0 && errno == EINVAL) {
    direct_ = false;
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "cannot open " + path_);
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) {
    const int error = errno;
    close(descriptor_);
    throw std::system_error(error, std::generic_category(), "cannot stat " + path_);
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

DirectFile::~DirectFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

DirectFile::DirectFile(DirectFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_),
      size_bytes_(other.size_bytes_) {}

}  // namespace diskgnn
