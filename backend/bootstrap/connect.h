// Store -> addresses -> connected peers. Collective over the ranks of a group; blocks up to the deadline.
#pragma once

#include <string>

#include "backend/bootstrap/peers.h"
#include "shardwire/options.h"
#include "shardwire/store.h"

namespace shardwire::internal {

// Every rank publishes its address in the store, learns the others', and connects to each by the first transport that
// reaches it (select_transport): a lower rank listens, a higher rank dials.
// kTimeout names the ranks that did not arrive; kUnsupported names the pair that no transport joins, and says why each one failed.
Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline, const std::string& groupName);

}  // namespace shardwire::internal
