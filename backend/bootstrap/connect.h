// Store -> addresses -> connected peers. Collective over the ranks of a group; blocks up to the deadline.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/transport/late_links.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"
#include "shardwire/store.h"

namespace shardwire::internal {

// Who a rank is, for people.
struct PeerName {
  std::string host;
  std::uint32_t pid = 0;
};

// In this order: what comes later uses what comes before.
struct Peers {
  Peers() = default;
  Peers(Peers&&) = default;
  // Member by member, wires would go before the connections that use them.
  Peers& operator=(Peers&& other) noexcept {
    if (this != &other) {
      std::destroy_at(this);
      std::construct_at(this, std::move(other));
    }
    return *this;
  }
  ~Peers() = default;

  std::unique_ptr<const Options> options;
  std::vector<std::unique_ptr<Wire>> wires;              // to be polled before connections are looked at; mostly none on one host
  std::vector<std::unique_ptr<Connection>> connections;  // by rank; null for this rank itself
  std::unique_ptr<LateLinks> late;                       // joins those that are not joined yet; null: all are
  std::vector<std::string> whyNotFaster;                 // by rank: why no faster transport joins it; empty when there is none
  std::unique_ptr<Doorbell> doorbell;                    // rings for all of them
  std::vector<std::int32_t> hosts;                       // by rank: equal numbers share a host
  std::vector<PeerName> names;                           // by rank, this one too
  std::string groupId;                                   // no secret; equal on all ranks of the group, and no other group's
};

// Every rank publishes its address in the store, learns the others', and connects to each by the first transport that
// reaches it (select_transport): a lower rank listens, a higher rank dials.
// kTimeout names the ranks that did not arrive; kUnsupported names the pair that no transport joins, and says why each one failed.
Result<Peers> connectPeers(Store& store, Rank rank, int worldSize, const Options& options, Deadline deadline, const std::string& groupName);

}  // namespace shardwire::internal
