#include "storage/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
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

}  // namespace

DirectFile::DirectFile(const std::string& path) : path_(name_of(path)) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
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
