// A group while it is made, as one rank sees it: what the steps of the bootstrap share. Each step is a file of its own (read_addresses,
// lookout, join_peers); connect.cc puts them in order. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/check_addresses.h"
#include "backend/bootstrap/own_ends.h"
#include "backend/bootstrap/peers.h"
#include "backend/bootstrap/store_attempts.h"
#include "shardwire/store.h"

namespace shardwire::internal {

struct Gathering {
  static std::size_t index(Rank rank) { return static_cast<std::size_t>(rank); }
  const RankAddress& addressOf(Rank peer) const { return addresses[index(peer)]; }
  std::string nameOf(Rank peer) const { return internal::nameOf(peer, addressOf(peer)); }
  bool isJoined(Rank peer) const { return peers.connections[index(peer)] != nullptr; }
  // Whether this rank did its half of being joined to that peer (Endpoint::attach()), and the peer, too, did its own.
  bool isAttached(Rank peer) const { return attached[index(peer)].connection != nullptr; }
  Result<bool> isMet(Rank peer) {
    Attached& half = attached[index(peer)];
    return half.connection == nullptr ? Result<bool>(false) : own.endpoints[static_cast<std::size_t>(half.kind)]->isMet(*half.connection);
  }

  Store& store;     // as the attempt and the round see it
  Store& whole;     // as all attempts see it
  Attempt attempt;  // store_attempts.h
  const int round;  // store_rounds.h
  const Rank rank;
  const int worldSize;
  const Deadline deadline;
  const Deadline start = Clock::now();
  OwnEnds own{};
  std::string published{};               // own.address, as it was written to the store
  std::vector<RankAddress> addresses{};  // by rank
  std::vector<bool> isRead{};            // by rank: whether its address is there
  struct Attached {
    std::unique_ptr<Connection> connection;  // null: no half is done
    TransportKind kind{};
  };
  std::vector<Attached> attached{};  // by rank
  bool knowsAll = false;             // every rank, and so how each is joined to this one
  // By rank: the transports, best first, one of which joins it when an operation first needs it (Options::links); none: it is joined at
  // once.
  std::vector<std::vector<TransportKind>> lateBy{};
  Peers peers{};       // who is joined so far
  Rank busyWith = -1;  // whom this rank shakes hands with: its socket tells of its end, in order with what it said
  bool storeFailed = false;
};

// kTimeout: "rank 3 did not arrive within 20 s".
Status lateError(const Gathering& group, const std::string& what, const std::vector<Rank>& ranks);

}  // namespace shardwire::internal
