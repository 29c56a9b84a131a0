// Peers that are joined when they are first needed (LateLinks). An operation is taken at once and moves what it can: towards a peer that is
// not joined yet there is no room, so that its bulk frames keep their order, and nothing is exposed before it is known what that peer can
// read (SendEdge, PointSend). Whoever is joined late learns what the others were told before. A peer that cannot be joined counts as gone,
// and fails the group when an operation needs it, like one that died.
#include <fmt/format.h>

#include <thread>
#include <utility>

#include "backend/base/log.h"
#include "backend/exec/engine.h"

namespace shardwire::internal {
namespace {

// A peer is gone, and others may tell why.
constexpr Duration kHearsOthersFor = std::chrono::milliseconds(200);
// How long a failed group is kept for peers that are not joined, and for those that are about to be.
constexpr Duration kStaysFor = std::chrono::milliseconds(500);
constexpr Duration kStaysForKnown = std::chrono::seconds(5);
constexpr Duration kStayNap = std::chrono::milliseconds(2);

}  // namespace

void Engine::wantLinks(Activity& activity) {
  activity.mayLackLinks = false;
  if (isJoinedToAll()) {
    return;
  }
  for (Rank peer = 0; (peer = nextMissing(activity, peer)) < worldSize_; ++peer) {
    peers_.late->want(peer);
    activity.mayLackLinks = true;
  }
}

bool Engine::takeLateLinks() {
  std::vector<LateLinks::News> news = peers_.late->poll();
  for (LateLinks::News& each : news) {
    if (each.connection.isOk()) {
      takeLink(std::move(*each.connection));
    } else {
      logInfo("{}: {}", groupLabel(), each.connection.status().message());
      noteDown(each.peer, each.connection.status());
    }
  }
  return !news.empty();
}

void Engine::takeLink(std::unique_ptr<Connection> connection) {
  const Rank peer = connection->peer();
  const auto p = static_cast<std::size_t>(peer);
  const std::size_t theirs = connection->maxFrameBytes(Lane::kBulk) - kHeadBytes<StagedFrame>;
  if (fetchesStopped_) {
    static_cast<void>(connection->stopFetches());  // of shared memory: at once
  }
  peers_.connections[p] = std::move(connection);
  isJoined_[p] = true;
  joined_.push_back(peer);
  failNoticeDue_[p] = !failNotice_.empty();
  hasNotices_ |= failNoticeDue_[p];
  waiting_[p].adviceDue = !advice_.empty();
  if (theirs < context_.segmentBytes) {
    poison({StatusCode::kMismatch,
            fmt::format("rank {} has shorter rings than rank {} ({} and {} bytes at most at once): SHARDWIRE_RING_BYTES "
                        "must be the same on all ranks",
                        peer, rank_, theirs, context_.segmentBytes)},
           true);
  }
}

// The first peer from `first` on that the operation needs and that is not joined; worldSize_: there is none.
Rank Engine::nextMissing(const Activity& activity, Rank first) const {
  Rank peer = first;
  while (peer < worldSize_ && (peer == rank_ || isJoined(peer) || !activity.needs(peer))) {
    ++peer;
  }
  return peer;
}

// A peer that is gone may have left because of another, to which the link is only on its way: a moment later that one's end is known, too.
bool Engine::mayHearMore(Clock::time_point now) {
  if (hearsUntil_ == Clock::time_point{}) {
    hearsUntil_ = now + kHearsOthersFor;
  }
  bool isAnyAwaited = false;
  for (const auto& activity : operations_.inFlight()) {
    for (Rank peer = 0; activity->mayLackLinks && (peer = nextMissing(*activity, peer)) < worldSize_; ++peer) {
      isAnyAwaited = isAnyAwaited || peerDown_[static_cast<std::size_t>(peer)].isOk();
    }
  }
  return isAnyAwaited && now < hearsUntil_;
}

// A failed group is not left at once while some are not joined: who comes to the operation a moment later is to hear the reason, and not
// that this rank left.
void Engine::tellLateComers() {
  const Deadline begin = Clock::now();
  while (true) {
    {
      const MutexLock lock(mutex_);
      const bool isAllTold = isJoinedToAll() && !hasNotices_;
      if (peers_.late == nullptr || !operations_.failure().has_value() || failNotice_.empty() || isAllTold) {
        return;
      }
      // Those with whom it was about to be joined live, and only have not got so far.
      if (Clock::now() >= begin + (peers_.late->isAnyUnderWay() ? kStaysForKnown : kStaysFor)) {
        return;
      }
      pollLocked();
    }
    std::this_thread::sleep_for(kStayNap);
  }
}

// Of an operation that expires: "; rank 3 (pid 7 on host a) does not answer ...".
std::string Engine::missingLinks(const Activity& activity) const {
  std::string text;
  for (Rank peer = 0; activity.mayLackLinks && (peer = nextMissing(activity, peer)) < worldSize_; ++peer) {
    text += fmt::format("; {}", peers_.late->whyNotYet(peer));
  }
  return text;
}

}  // namespace shardwire::internal
