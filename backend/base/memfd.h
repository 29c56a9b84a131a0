// Anonymous memory that can be handed to other processes as a file descriptor. It has no name anywhere and goes with its last user.
#pragma once

#include <cstdint>

#include "backend/base/fd.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// `bytes` of zeroes whose size is sealed, so that nobody who maps them can be made to fault (SIGBUS). No memory is set aside before it is
// touched. `name` appears in /proc/PID/maps and in errors only.
Result<Fd> makeMemfd(const char* name, std::uint64_t bytes);

// Whether `fd` is such memory, of this size: what a peer hands over is checked before it is mapped.
Status checkMemfd(int fd, std::uint64_t bytes);

}  // namespace shardwire::internal
