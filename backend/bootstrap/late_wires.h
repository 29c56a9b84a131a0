// Links over a wire that are made when first needed, from either end, while the group is in use: this rank's doors stay open, and whoever
// needs a peer dials it. Both may begin at once: then the link that the higher rank dialed is kept. A peer that ended in between is not
// there any more, and counts as gone.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/doors.h"
#include "backend/fabric/fabric.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/late_links.h"

namespace shardwire::internal {

struct LateWirePeer {
  Rank rank = 0;
  std::vector<TransportKind> kinds;  // whose endpoints may join late, best first; one that turns out not to work leaves it to the next
  std::string who;                   // for messages
};

struct LateWires {
  Rank self = 0;
  const Options* options = nullptr;      // outlives the links
  std::vector<RankAddress> addresses{};  // of all ranks
  Doors doors{};                         // that have links
  std::vector<LateWirePeer> peers{};
  std::array<std::unique_ptr<Endpoint>, kNumTransportKinds> endpoints{};  // of the peers' kinds, whose wires were taken
  std::shared_ptr<Fabric> fabric{};
};

std::unique_ptr<LateLinks> makeLateWires(LateWires parts);

}  // namespace shardwire::internal
