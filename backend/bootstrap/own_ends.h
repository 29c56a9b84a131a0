// A rank's own part in being joined: the address, the listeners named there, and one endpoint for each transport that
// the rank may use. Made before the other ranks are known. One thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/liveness.h"
#include "backend/bootstrap/rank_links.h"
#include "backend/fabric/fabric.h"
#include "backend/fabric/rank_bell.h"
#include "backend/transport/endpoint.h"
#include "shardwire/options.h"

namespace shardwire::internal {

struct OwnEnds {
  RankAddress address;
  std::optional<LifeSign> lifeSign;
  RankLinks rankLinks;
  std::shared_ptr<Fabric> fabric;                                       // of this process
  std::shared_ptr<RankBell> bell;                                       // of this rank, for all transports
  std::array<std::unique_ptr<Endpoint>, kNumTransportKinds> endpoints;  // by TransportKind; null: not available here

  // Makes all members. A transport that cannot be used here is no error: the address says why. On an error,
  // `address.failure` holds the returned status, too.
  Status prepare(Rank rank, int worldSize, const Options& options);
};

}  // namespace shardwire::internal
