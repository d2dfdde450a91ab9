// A file opened for reading past the page cache (O_DIRECT) where the file system allows it. Move-only.
#pragma once

#include <cstdint>
#include <string>

namespace diskgnn {

// Offsets, lengths and memory of direct reads are multiples of this. Where a disk asks for more (statx's DIOALIGN,
// known since Linux 6.1), reads go through the page cache.
inline constexpr std::uint64_t kDirectAlignment = 4096;

// Opens a file past the page cache. -1 with EINVAL in errno where its file system, or this system, has no O_DIRECT.
int open_direct(const std::string& path, int flags, unsigned mode = 0);

class DirectFile {
 public:
  // `path` may be /proc/self/fd/N (/dev/fd/N), a file that is open already. Throws std::system_error when it cannot be
  // opened.
  explicit DirectFile(const std::string& path);
  ~DirectFile();
  DirectFile(DirectFile&& other) noexcept;
  DirectFile& operator=(DirectFile&&) = delete;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  int descriptor() const { return descriptor_; }
  bool is_direct() const { return direct_; }  // false: tmpfs and the like: reads go through the page cache
  std::uint64_t size_bytes() const { return size_bytes_; }
  const std::string& path() const { return path_; }  // for messages

 private:
  std::string path_;
  int descriptor_ = -1;
  bool direct_ = true;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace diskgnn
