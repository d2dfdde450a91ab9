#include "files/read_attempts.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace diskgnn {

bool worth_another_attempt(int error) {
  constexpr int kErrors[] = {EIO,       EAGAIN, EBUSY,   ETIMEDOUT, ECANCELED, ENXIO,    ENODEV,
                             ENODATA,   EILSEQ, ENOLINK, EBADMSG,   ESTALE,    ENOTCONN, ECONNABORTED,
#ifdef __linux__
                             EREMOTEIO, EBADE,  EUCLEAN, ENOMEDIUM, ESHUTDOWN
#endif
  };
  return std::find(std::begin(kErrors), std::end(kErrors), error) != std::end(kErrors);
}

}  // namespace diskgnn
