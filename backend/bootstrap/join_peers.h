// The second step of the bootstrap: this rank is joined to each peer by the first transport that works between the two.
// One thread.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/bootstrap/gathering.h"
#include "backend/bootstrap/lookout.h"
#include "backend/bootstrap/select_transport.h"
#include "backend/transport/endpoint.h"

namespace shardwire::internal {

// Distinguishes transports only by Endpoint::needsLink(). A transport that needs no link attaches to a peer without the
// peer's help. With any other transport, one rank dials and the other answers. All endpoints have the same calls for
// this.
class PeerJoiner {
 public:
  // All addresses are read already.
  PeerJoiner(Gathering& group, Lookout& lookout) : group_(group), lookout_(lookout) {}

  // Finds the transports that may join this rank to each peer. kUnsupported when none does, kMismatch when the ranks do
  // not fit together.
  Status choose();
  // Peers with a transport that needs no link are attached to first, and met last. Each other pair is joined by the
  // higher rank, which dials. kTimeout names the ranks that did not connect.
  Status joinAll();
  // By TransportKind: whether the transport joins this rank to any peer.
  const std::array<bool, kNumTransportKinds>& used() const { return used_; }

 private:
  Endpoint& endpoint(TransportKind kind) { return *group_.own.endpoints[static_cast<std::size_t>(kind)]; }
  TransportChoice& choiceOf(Rank peer) { return choices_[Gathering::index(peer)]; }
  bool isLateWire(Rank peer);
  void putOff(Rank peer);
  Status attachAll();
  Status attach(Rank peer, TransportKind kind);
  Status meetAll();
  Result<std::vector<Rank>> unmet();
  Status dialLower();
  Status dial(Rank peer);
  Result<std::unique_ptr<Connection>> dialBy(TransportKind kind, Rank peer);
  Result<std::unique_ptr<Connection>> connect(Link link, TransportKind kind, Rank peer, bool isDialer);
  Status acceptHigher();
  Status answer(Caller caller);
  Status noteFailure(TransportKind kind, Rank peer, const Status& why);
  Status forbiddenBySettings(TransportKind kind, Rank peer, const Status& why) const;
  bool isCandidate(TransportKind kind, Rank peer) const;
  std::vector<Rank> missingHigher() const;
  Status missingError(const std::vector<Rank>& missing) const;
  Status join(std::unique_ptr<Connection> connection, TransportKind kind);

  Gathering& group_;
  Lookout& lookout_;
  std::vector<TransportChoice> choices_;  // by rank
  std::array<bool, kNumTransportKinds> used_{};
};

}  // namespace shardwire::internal
