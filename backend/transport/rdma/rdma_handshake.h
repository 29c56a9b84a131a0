// The set-up of one RDMA connection over its link. Both sides make queue pairs, exchange their numbers, connect the
// queue pairs, and report that they are ready. Each step() does what is possible without waiting. docs/rdma.md has the
// bytes.
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
  const Options* options = nullptr;  // outlives the handshake
  Rank self = 0;
  Rank peer = 0;
  bool isDialer = false;
  std::string who;
  std::vector<RailAddress> own;
  std::string theirs;  // Endpoint::address() of the peer
};

std::unique_ptr<Joining> joinByRdma(RdmaHandshake handshake, Link link);
// Reports to the dialer that this rank rejects the set-up.
void refuseByRdma(Link link, const Status& why);

}  // namespace shardwire::internal
