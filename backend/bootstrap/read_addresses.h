// The first step of the bootstrap: this rank puts its address into the store, and reads all other addresses. One
// thread.
#pragma once

#include <string>

#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/lookout.h"

namespace shardwire::internal {

// Prepares this rank's endpoints and publishes the address. If the preparation fails, the published address gives the
// reason to the other ranks.
Status publishAddress(Gathering& group);
// Fills group.addresses. kTimeout names the ranks that did not arrive.
Status readAddresses(Gathering& group, Lookout& lookout);
// kMismatch when another process has overwritten this rank's address: some ranks may have taken that process for this
// rank. Ok when the store does not answer.
Status checkStillOwn(Gathering& group);

}  // namespace shardwire::internal
