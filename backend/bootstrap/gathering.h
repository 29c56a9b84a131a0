// One rank's view of a group while the group is made: the state that the steps of the bootstrap share. Each step has
// its own file (read_addresses, lookout, join_peers); connect.cc puts the steps in order. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/check_addresses.h"
#include "backend/bootstrap/machine.h"
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
  // Whether this rank did its half of the join to that peer (Endpoint::attach()), and whether the peer did its half,
  // too.
  bool isAttached(Rank peer) const { return attached[index(peer)].connection != nullptr; }
  Result<bool> isMet(Rank peer) {
    Attached& half = attached[index(peer)];
    return half.connection == nullptr ? Result<bool>(false)
                                      : own.endpoints[static_cast<std::size_t>(half.kind)]->isMet(*half.connection);
  }

  Machine& machine;
  Store& store;     // the store with the keys of this attempt and round
  Store& whole;     // the store with the keys of all attempts
  Attempt attempt;  // store_attempts.h
  const int round;  // store_rounds.h
  const Rank rank;
  const int worldSize;
  const Deadline deadline;
  const Deadline start = Clock::now();
  OwnEnds own{};
  std::string published{};               // own.address, as written to the store
  std::vector<RankAddress> addresses{};  // by rank
  std::vector<bool> isRead{};            // by rank: whether the address was read
  struct Attached {
    std::unique_ptr<Connection> connection;  // null: no half is done
    TransportKind kind{};
  };
  std::vector<Attached> attached{};  // by rank
  // Every rank is known, and so how each peer is joined to this rank.
  bool knowsAll = false;
  std::vector<bool> needsLink{};  // by rank: whether the best transport to the peer joins over a link; once knowsAll
  // By rank: the transports, best first, one of which joins the peer when an operation first needs the peer
  // (Options::links). Empty: the peer is joined at once.
  std::vector<std::vector<TransportKind>> lateBy{};
  Peers peers{};  // the peers joined so far
  // The peer in a handshake with this rank; -1: none. The peer's socket reports the peer's end, in order with the
  // peer's messages.
  Rank busyWith = -1;
  bool storeFailed = false;
};

// kTimeout: "rank 3 did not arrive within 20 s".
Status lateError(const Gathering& group, const std::string& what, const std::vector<Rank>& ranks);

}  // namespace shardwire::internal
