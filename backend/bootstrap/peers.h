// The result of the bootstrap: the connected peers of one rank of one group, with all objects that the connections
// share.
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

// Later members use earlier members, hence the order.
struct Peers {
  Peers() = default;
  Peers(Peers&&) = default;
  // A move member by member would destroy wires before the connections that use the wires.
  Peers& operator=(Peers&& other) noexcept {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }
  ~Peers() = default;

  std::unique_ptr<const Options> options;
  std::vector<std::unique_ptr<Wire>> wires;              // polled before the connections; mostly none on one host
  std::vector<std::unique_ptr<Connection>> connections;  // by rank; null for this rank
  std::unique_ptr<LateLinks> late;                       // joins the peers not joined yet; null: all peers are joined
  // By rank: why no faster transport joins the peer; empty when there is no faster one.
  std::vector<std::string> whyNotFaster;
  std::unique_ptr<Doorbell> doorbell;  // all peers ring it
  std::vector<std::int32_t> hosts;     // by rank: ranks with equal numbers share a host
  std::vector<PeerName> names;         // by rank, this rank included
  // No secret; equal on all ranks of the group, different for each group.
  std::string groupId;
};

}  // namespace shardwire::internal
