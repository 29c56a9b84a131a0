// The failure of a group: ends everything on this rank with the first reason, and sends the reason to the peers.
// Guarded by the group's lock.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec/failure_callback.h"
#include "backend/exec/operations.h"
#include "backend/exec/peer_links.h"

namespace shardwire::internal {

class OneSided;

class GroupFailure {
 public:
  // `hasWork` is set when notices to peers are still to be sent.
  GroupFailure(const RunContext& context, Operations& operations, PeerLinks& links, OneSided& oneSided,
               FailureCallback& callback, std::atomic<bool>& hasWork);

  // The group fails here, and the peers fail at once with the same text. The first reason stays.
  void fail(Status why);
  // The same, but the peers are not notified: the group ends.
  void end(Status why);
  // The same by the wish of a rank, on all ranks, also where the group failed before.
  void revoke(std::string why);
  const std::string& revocation() const { return revocation_; }  // empty: no rank revoked the group
  // The peer's reason goes on to all other peers: the peer may end before notifying every rank, and a rank waiting for
  // this rank must know why this rank does not come.
  void onFail(Rank from, const Received<FailFrame>& frame);
  // A failure of one operation, which leaves the group usable.
  void count(StatusCode code) { isCallbackDue_ |= callback_.add(code); }
  // To be called before callers get their tensors back: nothing on the wires touches the tensors any more, or the
  // tensors are kept for ever.
  void stopFetches();

  // Notices that could not be sent yet, because lanes were full or peers were joined late.
  bool hasNotices() const { return hasNotices_; }
  void sendNotices();
  void addNoticeTo(Rank peer);
  const std::string& notice() const { return notice_; }  // empty: there is no notice for peers

  bool isCallbackDue() const { return isCallbackDue_; }
  bool takeCallbackDue() { return std::exchange(isCallbackDue_, false); }

 private:
  void notifyPeers(std::string notice);

  const RunContext& context_;
  Operations& operations_;
  PeerLinks& links_;
  OneSided& oneSided_;
  FailureCallback& callback_;
  std::atomic<bool>& hasWork_;
  std::string notice_;
  std::string revocation_;
  bool hasNotices_ = false;
  std::vector<bool> isNoticeDue_;  // by peer
  bool isCallbackDue_ = false;
};

}  // namespace shardwire::internal
