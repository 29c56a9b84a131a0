// A text that describes a new group from one rank's view. Pure. Any thread.
#pragma once

#include <span>
#include <string>

#include "backend/bootstrap/peers.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// "rank 1", "ranks 2, 3"
std::string rankList(std::span<const Rank> ranks);
// The same for long lists, which are ascending: "ranks 1, 5 to 40".
std::string rankRanges(std::span<const Rank> ranks);

// "shm to ranks 1; tcp to ranks 2, 3 (shm: they run on different hosts (a and b); rdma: rank 0: no device)"
std::string summary(const Peers& peers);

}  // namespace shardwire::internal
