#include "storage/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace diskgnn {

DirectFile::DirectFile(const std::string& path) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (descriptor_ < 0 && errno == EINVAL) {
    direct_ = false;
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  }
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "cannot open " + path);
  struct stat status{};
  if (fstat(descriptor_, &status) != 0) {
    const int error = errno;
    close(descriptor_);
    throw std::system_error(error, std::generic_category(), "cannot stat " + path);
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
