// Shared memory as a way to join ranks of one host. A rank says in the store where its inbox lies; each peer maps that, over the link of
// the two processes, without the rank's help, and says so in its slot of it. One thread.
#pragma once

#include <memory>

#include "backend/transport/endpoint.h"
#include "backend/transport/shm/inbox.h"

namespace shardwire::internal {

// `inbox` is the rank's own, which is also its bell, whatever joins it to others. kUnsupported: this process has no shared heap.
Result<std::unique_ptr<Endpoint>> makeShmEndpoint(const Self& self, std::shared_ptr<Inbox> inbox);

}  // namespace shardwire::internal
