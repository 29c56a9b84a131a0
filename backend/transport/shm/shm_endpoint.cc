// Joins ranks of one host by shared memory. A rank's address gives the place of its inbox in its process's arena.
// attach() maps the peer's inbox over the link of the two processes (or finds the inbox, within one process), measures
// how fast the peer's ordinary memory can be read, and reports the speed in this rank's slot of the peer's inbox.
// isMet() is true when the peer has done the same in this rank's inbox. Peers also ring this rank in the inbox, so the
// endpoint gives the rank its bell.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "backend/memory/shared_heap.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/shm/shm_connection.h"
#include "backend/transport/shm/shm_fabric.h"
#include "backend/transport/shm/shm_late_links.h"
#include "backend/transport/shm/shm_message.h"

namespace shardwire::internal {
namespace {

// The bell of a rank whose peers ring the bell in the inbox, and look there for the rank's last word.
class InboxBell final : public RankBell {
 public:
  explicit InboxBell(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)) {}
  BellWords& words() override { return inbox_->header().bell; }
  void leaveWord(const Status& why) override { inbox_->leaveWord(why); }
  void leave() override { inbox_->markLeft(); }

 private:
  const std::shared_ptr<Inbox> inbox_;
};

class ShmEndpoint final : public Endpoint {
 public:
  ShmEndpoint(const Self& self, std::shared_ptr<Inbox> inbox, const SharedHeap* heap)
      : self_(self), path_(self.options->ordinaryPath), inbox_(std::move(inbox)), heap_(heap) {}

  std::string address() const override {
    return encodeShmAddress({inbox_->fabric()->address(), inbox_->offset(), inbox_->id(), path_});
  }
  std::string whyNot(std::string_view peerAddress) const override {
    const auto theirs = decodeShmAddress(peerAddress);
    return theirs.isOk() ? "" : theirs.status().message();
  }
  bool needsLink() const override { return false; }
  Result<std::unique_ptr<Connection>> attach(Rank peer, std::string_view peerAddress, const std::string& who,
                                             const WaitLimit& limit) override;
  Result<bool> isMet(Connection& connection) override;
  std::unique_ptr<Wire> takeWire() override { return nullptr; }
  std::shared_ptr<RankBell> bell() override { return std::make_shared<InboxBell>(inbox_); }
  std::unique_ptr<LateLinks> joinLate(std::vector<LatePeer> peers) override {
    return makeShmLateLinks(std::make_unique<ShmEndpoint>(self_, inbox_, heap_), inbox_, std::move(peers));
  }

 private:
  Status joinProcess(const ShmAddress& theirs, const WaitLimit& limit, ShmJoint* joint) const;
  void decideOnReads(const ShmAddress& theirs, ShmJoint* joint) const;
  Status checkForcedPath(const ShmConnection& shm) const;

  const Self self_;
  const OrdinaryPath path_;
  const std::shared_ptr<Inbox> inbox_;
  const SharedHeap* const heap_;
};

// Finds the peer's inbox, by the link of the two processes; within one process directly.
Status ShmEndpoint::joinProcess(const ShmAddress& theirs, const WaitLimit& limit, ShmJoint* joint) const {
  ShmFabric& fabric = *inbox_->fabric();
  if (theirs.owner.process == fabric.address().process) {
    joint->theirs = Inbox::findInProcess(theirs.inboxId);
    if (joint->theirs == nullptr) {
      return {StatusCode::kPeerFailed, fmt::format("rank {} has left", joint->peer)};
    }
    return joint->theirs->jobToken() == self_.options->jobToken
               ? Status::ok()
               : Status{StatusCode::kMismatch, "it has another SHARDWIRE_JOB_TOKEN"};
  }
  auto link = fabric.linkTo(theirs.owner, self_.options->jobToken, limit);
  SW_RETURN_IF_ERROR(link.status());
  joint->link = std::move(*link);
  auto inbox = Inbox::map({joint->link->arenaFd(), joint->link->arenaBytes(), theirs.inboxOffset, theirs.inboxId,
                           &joint->link->page(), &joint->link->liveness()},
                          joint->peer, self_.worldSize, self_.rank);
  SW_RETURN_IF_ERROR(inbox.status());
  joint->theirs = std::move(*inbox);
  return Status::ok();
}

void ShmEndpoint::decideOnReads(const ShmAddress& theirs, ShmJoint* joint) const {
  joint->isForced = path_ == OrdinaryPath::kCrossMemory || theirs.ordinaryPath == OrdinaryPath::kCrossMemory;
  const bool selfStages = path_ == OrdinaryPath::kStaged;
  if (selfStages || theirs.ordinaryPath == OrdinaryPath::kStaged) {
    joint->whyNoReads = fmt::format("SHARDWIRE_ORDINARY_PATH=staged on rank {}", selfStages ? self_.rank : joint->peer);
    return;
  }
  const auto speed = joint->link->readSpeed();
  if (!speed.isOk()) {
    joint->whyNoReads = speed.status().message();
    return;
  }
  if (!joint->isForced && !speed->pays()) {
    joint->whyNoReads =
        fmt::format("reads of its memory run at {:.1f} GB/s where memcpy runs at {:.1f}: staging is faster",
                    speed->readGBps, speed->copyGBps);
    return;
  }
  joint->readGBps = speed->readGBps;
}

Result<std::unique_ptr<Connection>> ShmEndpoint::attach(Rank peer, std::string_view peerAddress, const std::string& who,
                                                        const WaitLimit& limit) {
  const auto theirs = decodeShmAddress(peerAddress);
  SW_RETURN_IF_ERROR(theirs.status());
  ShmJoint joint;
  joint.self = self_.rank;
  joint.peer = peer;
  joint.who = who;
  joint.mine = inbox_;
  joint.myHeap = heap_;
  SW_RETURN_IF_ERROR(joinProcess(*theirs, limit, &joint));
  if (joint.isSameProcess()) {
    joint.sameProcessReach = path_ == OrdinaryPath::kStaged        ? Reach::kNone
                             : path_ == OrdinaryPath::kCrossMemory ? Reach::kCopy
                                                                   : Reach::kDirect;
  } else {
    decideOnReads(*theirs, &joint);
  }
  return std::unique_ptr<Connection>(std::make_unique<ShmConnection>(std::move(joint)));
}

Result<bool> ShmEndpoint::isMet(Connection& connection) {
  auto& shm = static_cast<ShmConnection&>(connection);
  if (!shm.readAnnouncement()) {
    return false;
  }
  SW_RETURN_IF_ERROR(checkForcedPath(shm));
  return true;
}

// Makes the same text on both sides.
Status ShmEndpoint::checkForcedPath(const ShmConnection& shm) const {
  const Rank peer = shm.peer();
  const ShmConnection::Reads mine = shm.myReads();
  const ShmConnection::Reads& theirs = shm.peersReads();
  if (!shm.isForced() || (mine.gbps > 0 && theirs.gbps > 0)) {
    return Status::ok();
  }
  const bool selfIsLower = self_.rank < peer;
  const ShmConnection::Reads& lower = selfIsLower ? mine : theirs;
  const ShmConnection::Reads& higher = selfIsLower ? theirs : mine;
  const bool lowerFails = lower.gbps == 0;
  return {StatusCode::kInvalidArgument,
          fmt::format("SHARDWIRE_ORDINARY_PATH=cross_memory, but rank {} cannot read the memory of rank {}: {}",
                      lowerFails ? std::min(self_.rank, peer) : std::max(self_.rank, peer),
                      lowerFails ? std::max(self_.rank, peer) : std::min(self_.rank, peer),
                      (lowerFails ? lower : higher).whyNot)};
}

}  // namespace

Result<std::unique_ptr<Endpoint>> makeShmEndpoint(const Self& self) {
  auto fabric = ShmFabric::instance();
  SW_RETURN_IF_ERROR(fabric.status());
  const Result<SharedHeap*>& heap = (*fabric)->heap();
  if (!heap.isOk()) {
    const Status& why = heap.status();
    return Status{why.code() == StatusCode::kSystem ? StatusCode::kUnsupported : why.code(), why.message()};
  }
  SW_RETURN_IF_ERROR((*fabric)->fabric().listen(self.options->jobToken));
  auto inbox = Inbox::create(self.worldSize, *self.options, *fabric);
  SW_RETURN_IF_ERROR(inbox.status());
  if (self.options->ordinaryPath != OrdinaryPath::kStaged) {
    allowCrossMemoryReads();
  }
  return std::unique_ptr<Endpoint>(std::make_unique<ShmEndpoint>(self, std::move(*inbox), *heap));
}

}  // namespace shardwire::internal
