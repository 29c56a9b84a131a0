// Store -> addresses -> connected peers. Collective over the ranks of a group; blocks up to the deadline.
#pragma once

#include <string>

#include "backend/bootstrap/peers.h"
#include "shardwire/options.h"
#include "shardwire/store.h"

namespace shardwire::internal {

class Machine;

// Every rank publishes an address in the store, reads the other ranks' addresses, and connects to each peer by the
// first transport that reaches the peer (select_transport): a lower rank listens, a higher rank dials. kTimeout names
// the ranks that did not arrive. kUnsupported names a pair without a transport, and the reason against each transport.
Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline,
                           const std::string& groupName);
// The same, with the machine of a simulation.
Result<Peers> connectPeers(Machine& machine, Store& store, Rank rank, int worldSize, const Options& options,
                           Deadline deadline, const std::string& groupName);

}  // namespace shardwire::internal
