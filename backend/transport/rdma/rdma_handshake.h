// The set-up of one RDMA connection over its link: both sides make their queue pairs, tell each other their numbers, connect them, and say
// that they are ready. Bytes in docs/rdma.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backend/transport/rdma/rdma_connection.h"
#include "shardwire/options.h"

namespace shardwire::internal {

struct RdmaHandshake {
  std::shared_ptr<RdmaFabric> fabric;
  const Options& options;
  Rank self = 0;
  Rank peer = 0;
  bool isDialer = false;
  std::string who;
  const std::vector<RailAddress>& own;
  const std::vector<RailAddress>& theirs;
};

Result<std::unique_ptr<Connection>> joinByRdma(const RdmaHandshake& handshake, Link link, Deadline deadline);

}  // namespace shardwire::internal
