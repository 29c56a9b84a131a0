#include "backend/base/fd.h"

#include <unistd.h>

namespace shardwire::internal {

void Fd::reset(int fd) {
  if (fd_ >= 0) {
    ::close(fd_);  // an error here cannot be mended, and Linux closes the descriptor all the same
  }
  fd_ = fd;
}

}  // namespace shardwire::internal
