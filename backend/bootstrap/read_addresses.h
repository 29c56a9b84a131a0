// The first step of the bootstrap: this rank's address goes into the store, and all others' are read. One thread.
#pragma once

#include <string>

#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/lookout.h"

namespace shardwire::internal {

// Makes this rank's ends and publishes their address; where that fails, the address tells the others why.
Status publishAddress(Gathering& group);
// Fills group.addresses. kTimeout names the ranks that did not arrive.
Status readAddresses(Gathering& group, Lookout& lookout);
// kMismatch when another process wrote over this rank's address meanwhile: some may have taken it for this rank.
Status checkStillOwn(Gathering& group);

}  // namespace shardwire::internal
