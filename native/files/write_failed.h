// What a write that failed throws.
#pragma once

#include <system_error>

namespace diskgnn {

// Not a disk that failed to read: Python gets an OSError with errno, and says which file was written.
struct WriteFailed : std::system_error {
  using std::system_error::system_error;
};

}  // namespace diskgnn
