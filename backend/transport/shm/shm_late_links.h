// Links over shared memory that are made when first needed, from either end: who needs one does its half (Endpoint::attach), which the
// other finds announced in its inbox, and does its own. No frame travels before both are there.
#pragma once

#include <memory>
#include <vector>

#include "backend/transport/endpoint.h"
#include "backend/transport/late_links.h"
#include "backend/transport/shm/inbox.h"

namespace shardwire::internal {

// `endpoint` is the one of shared memory over `inbox`.
std::unique_ptr<LateLinks> makeShmLateLinks(std::unique_ptr<Endpoint> endpoint, std::shared_ptr<Inbox> inbox, std::vector<LatePeer> peers);

}  // namespace shardwire::internal
