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
// Whether the store has all that readAddresses() reads. Whoever has read that may be through, and gone in good order. Asks the store.
bool isAllPublished(Gathering& group);
// Whether all take the addresses that rank 0 read, so that all have the same. Else each reads them by itself.
bool usesRoster(const Gathering& group);
// kMismatch when another process wrote over this rank's address meanwhile: some may have taken it for this rank.
Status checkStillOwn(Gathering& group);

}  // namespace shardwire::internal
