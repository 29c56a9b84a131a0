// Links over a wire, made from either end when first needed, while the group is in use. This rank's link endpoint stays
// open, and a rank that needs a peer dials the peer. Both ranks may begin at once: then the higher rank's link is kept.
// A peer that ended meanwhile no longer listens, and counts as gone. So does a peer at whose addresses no host answers.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/rank_links.h"
#include "backend/fabric/fabric.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/late_links.h"

namespace shardwire::internal {

struct LateWirePeer {
  Rank rank = 0;
  // Transports with endpoints that may join late, best first; if one turns out not to work, the next is tried.
  std::vector<TransportKind> kinds;
  std::string who;  // for messages
};

struct LateWires {
  Rank self = 0;
  const Options* options = nullptr;      // outlives the links
  std::vector<RankAddress> addresses{};  // by rank
  RankLinks rankLinks{};                 // with links
  std::vector<LateWirePeer> peers{};
  // For the peers' kinds; the wires were taken.
  std::array<std::unique_ptr<Endpoint>, kNumTransportKinds> endpoints{};
  std::shared_ptr<Fabric> fabric{};
};

std::unique_ptr<LateLinks> makeLateWires(LateWires parts);

}  // namespace shardwire::internal
