// Which peers of a group this rank is joined to, which are gone, and why. Guarded by the group's lock.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/bootstrap/connect.h"
#include "backend/exec/activity.h"
#include "backend/exec/run_context.h"

namespace shardwire::internal {

class PeerLinks {
 public:
  PeerLinks(Peers& peers, const RunContext& context);

  // ---- Joining
  const std::vector<Rank>& joined() const { return joined_; }
  bool isJoinedToAll() const { return joined_.size() + 1 == isJoined_.size(); }
  // Some peers are joined only when an operation needs these peers.
  bool joinsLate() const { return peers_.late != nullptr; }
  // Asks for the needed peers of the operation that are not joined yet.
  void want(Activity& activity);
  // Asks for all peers that are not joined yet.
  void wantAll();
  // Takes the connections made since the last call; true when at least one was made, or a peer cannot be joined.
  // `*joined`: the new peers.
  bool takeLate(std::vector<Rank>* joined);
  // Peers are wanted, and alive as far as this rank knows.
  bool isAnyUnderWay() const { return joinsLate() && peers_.late->isAnyUnderWay(); }
  // For the error of an expiring operation: "; rank 3 (pid 7 on host a) does not answer ...".
  std::string whyMissing(const Activity& activity) const;

  // ---- Peers that are gone, because they died, left, or cannot be joined
  bool isGone(Rank peer) const { return !whyGone(peer).isOk(); }
  const Status& whyGone(Rank peer) const { return whyGone_[static_cast<std::size_t>(peer)]; }
  const std::vector<Rank>& gone() const { return gone_; }
  // When the last of these was noticed.
  Clock::time_point lastGone() const { return lastGone_; }
  std::vector<Rank> goneOf(std::span<const Rank> peers) const;
  // Why the peer is gone, if its connection ended or could not be made; ok where this is not known.
  Status statusOf(Rank peer) const;
  // The joined peers whose connection ended since the last call.
  std::vector<Rank> takeGone();
  // A gone peer may have left because of another peer, whose link is still under way: a moment later the end of the
  // other peer is known, too.
  bool mayLearnMore(std::span<const std::shared_ptr<Activity>> inFlight, Clock::time_point now);

  // ---- The end
  // After this nothing on the wires touches tensors of callers any more. False: a wire could not stop its transfers.
  bool stopFetches();
  // The connections, for destruction outside of the lock; later connection requests of peers are rejected.
  std::pair<std::vector<std::unique_ptr<Connection>>, std::unique_ptr<LateLinks>> close();
  bool isClosed() const { return isClosed_; }

  // One line per rank: the transport, and the reason against each faster transport.
  std::string describe() const;

 private:
  Rank nextMissing(const Activity& activity, Rank first) const;
  void noteGone(Rank peer, Status why);

  Peers& peers_;
  const RunContext& context_;
  std::vector<bool> isJoined_;  // by peer
  std::vector<Rank> joined_;
  std::vector<Status> whyGone_;  // by peer; ok: the peer is not gone
  std::vector<Rank> gone_;       // in order
  Clock::time_point lastGone_{};
  Clock::time_point learnsUntil_{};
  bool fetchesStopped_ = false;
  bool isClosed_ = false;
};

}  // namespace shardwire::internal
