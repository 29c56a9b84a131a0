// What a rank brings along to be joined: its address, the doors behind it, and one endpoint for each transport that it may use. Made
// before it is known who the others are. One thread.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/doors.h"
#include "backend/bootstrap/liveness.h"
#include "backend/fabric/fabric.h"
#include "backend/fabric/rank_bell.h"
#include "backend/transport/endpoint.h"
#include "shardwire/options.h"

namespace shardwire::internal {

struct OwnEnds {
  RankAddress address;
  std::optional<LifeSign> lifeSign;
  Doors doors;
  std::shared_ptr<Fabric> fabric;                                       // of this process
  std::shared_ptr<RankBell> bell;                                       // of this rank, whatever joins it to others
  std::array<std::unique_ptr<Endpoint>, kNumTransportKinds> endpoints;  // by TransportKind; null: not here

  // Makes all of it. A transport that cannot be used here is no error: its address says why. Else `address.failure` says what this returns.
  Status prepare(Rank rank, int worldSize, const Options& options);
};

}  // namespace shardwire::internal
