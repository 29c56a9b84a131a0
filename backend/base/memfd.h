// Anonymous memory that can be passed to other processes as a file descriptor. The memory has no name in the file
// system and is freed after the last user.
#pragma once

#include <cstdint>

#include "backend/base/fd.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// `bytes` zero bytes of sealed size, so that a process which maps the memory cannot be made to fault (SIGBUS). Memory
// is allocated at the first touch. `name` appears only in /proc/PID/maps and in errors.
Result<Fd> makeMemfd(const char* name, std::uint64_t bytes);

// Checks that `fd` is memory of makeMemfd() of this size: a peer's descriptor is checked before mapping.
Status checkMemfd(int fd, std::uint64_t bytes);

}  // namespace shardwire::internal
