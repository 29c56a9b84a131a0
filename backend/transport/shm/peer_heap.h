// The shared heap of another process, mapped here for reading. One mapping per process pair, however many groups join
// the two.
#pragma once

#include <sys/types.h>

#include <memory>

#include "backend/base/mapping.h"
#include "backend/base/random_id.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// Maps `fd` (checked: size and seals), or returns the mapping already made by another connection to the same process.
Result<std::shared_ptr<const Mapping>> mapPeerHeap(const RandomId& process, int fd, std::uint64_t bytes, pid_t owner);

}  // namespace shardwire::internal
