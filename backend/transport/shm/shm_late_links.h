// Links over shared memory, made from either end when first needed. A rank that needs a peer does its half of the link
// (Endpoint::attach). The peer finds the half announced in its inbox, and does the other half. No frame travels before
// both halves are done.
#pragma once

#include <memory>
#include <vector>

#include "backend/transport/endpoint.h"
#include "backend/transport/late_links.h"
#include "backend/transport/shm/inbox.h"

namespace shardwire::internal {

// `endpoint` is the shared-memory endpoint over `inbox`.
std::unique_ptr<LateLinks> makeShmLateLinks(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Inbox> inbox,
                                            std::vector<LatePeer> peers);

}  // namespace shardwire::internal
