// The result of the bootstrap: the connected peers of one rank of one group, with everything that the connections share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/transport/late_links.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// Names the process of a rank in messages.
struct PeerName {
  std::string host;
  std::uint32_t pid = 0;
};

// Members are in this order because the later ones use the earlier ones.
struct Peers {
  Peers() = default;
  Peers(Peers&&) = default;
  // A move member by member would destroy wires before the connections that use them.
  Peers& operator=(Peers&& other) noexcept {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }
  ~Peers() = default;

  std::unique_ptr<const Options> options;
  std::vector<std::unique_ptr<Wire>> wires;              // polled before the connections are; mostly none on one host
  std::vector<std::unique_ptr<Connection>> connections;  // by rank; null for this rank itself
  std::unique_ptr<LateLinks> late;                       // joins the peers that are not joined yet; null: all peers are joined
  std::vector<std::string> whyNotFaster;                 // by rank: why no faster transport joins the peer; empty when there is none
  std::unique_ptr<Doorbell> doorbell;                    // all peers ring it
  std::vector<std::int32_t> hosts;                       // by rank: equal numbers share a host
  std::vector<PeerName> names;                           // by rank, this rank's too
  std::string groupId;                                   // no secret; equal on all ranks of the group, different for each group
};

}  // namespace shardwire::internal
