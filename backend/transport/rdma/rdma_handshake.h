// The set-up of one RDMA connection over its link: both sides make their queue pairs, tell each other their numbers, connect them, and say
// that they are ready. Goes on step by step and waits for nothing. Bytes in docs/rdma.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/transport/endpoint.h"
#include "backend/transport/rdma/rdma_connection.h"
#include "shardwire/options.h"

namespace shardwire::internal {

struct RdmaHandshake {
  std::shared_ptr<RdmaFabric> fabric;
  const Options* options = nullptr;  // outlives it
  Rank self = 0;
  Rank peer = 0;
  bool isDialer = false;
  std::string who;
  std::vector<RailAddress> own;
  std::string theirs;  // Endpoint::address() of the peer
};

std::unique_ptr<Joining> joinByRdma(RdmaHandshake handshake, Link link);
// Tells who dialed that there is nothing to set up.
void refuseByRdma(Link link, const Status& why);

}  // namespace shardwire::internal
