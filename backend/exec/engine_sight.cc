// What a group looks like from this rank, for people. Who asks is a thread of its own, which must disturb nobody: it tries the lock for a
// moment, and where that is held (a long copy) it tells what the flight recorder knows, which has a lock that is held for nanoseconds.
#include <fmt/format.h>

#include <thread>

#include "backend/exec/engine.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kLatest = 32;
constexpr Duration kTryEvery = std::chrono::milliseconds(1);

// "rank 1: shm, cross-memory reads" -> "shm, cross-memory reads"
std::string withoutRank(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// From what was recorded: whom it waits for is not known.
void lookAtRecord(GroupSight& sight) {
  const auto now = Clock::now();
  for (const RecordedOp& op : sight.latest) {
    sight.sequence = std::max(sight.sequence, op.seq);
    if (!op.isOver()) {
      sight.inFlight.push_back({op.seq, *op.description, now - op.called, op.timeout, {}, "another thread of this rank moves it on"});
    }
  }
}

}  // namespace

GroupSight Engine::sight(Duration patience) {
  GroupSight sight{.id = peers_.groupId, .name = groupName_, .rank = rank_, .worldSize = worldSize_};
  sight.globalRanks = globalRanks();
  sight.age = Clock::now() - madeAt_;
  sight.isRecorded = recorder_.isOn();
  sight.latest = recorder_.latest(kLatest);
  for (std::size_t peer = 0; peer < peers_.names.size(); ++peer) {
    sight.peers.push_back({.rank = static_cast<Rank>(peer), .host = peers_.names[peer].host, .pid = peers_.names[peer].pid});
  }
  const Deadline until = Clock::now() + patience;
  while (!mutex_.tryLock()) {
    if (Clock::now() >= until) {
      sight.isBusy = true;
      lookAtRecord(sight);
      return sight;
    }
    std::this_thread::sleep_for(kTryEvery);
  }
  const MutexLock lock(mutex_, std::adopt_lock);
  sight.failure = operations_.failure().has_value() ? operations_.failure()->message() : std::string();
  sight.sequence = operations_.numCalls();
  sight.timeout = operations_.timeout();
  sight.lastCall = operations_.describeLatest();
  lookAtPeers(sight);
  lookAtOperations(sight);
  return sight;
}

void Engine::lookAtPeers(GroupSight& sight) const {
  for (PeerSight& peer : sight.peers) {
    const auto p = static_cast<std::size_t>(peer.rank);
    peer.sentBytes = operations_.traffic(peer.rank).sends;
    peer.receivedBytes = operations_.traffic(peer.rank).receives;
    peer.gone = peerDown_[p].isOk() ? std::string() : peerDown_[p].message();
    if (!isClosed_ && peer.rank != rank_) {
      peer.transport = withoutRank(connection(peer.rank).describe());
    }
  }
}

void Engine::lookAtOperations(GroupSight& sight) const {
  const auto now = Clock::now();
  for (const auto& activity : operations_.inFlight()) {
    const auto since = activity->started == Clock::time_point{} ? Duration(0) : Duration(now - activity->started);
    if (!sight.inFlight.empty() && activity->call != 0 && activity->call == sight.inFlight.back().seq) {
      continue;  // a later part of the same call
    }
    OperationSight seen{activity->call, *activity->description, since, activity->timeout, {}, {}};
    std::vector<Rank> needed;
    for (Rank peer = 0; peer < worldSize_ && !isClosed_; ++peer) {
      if (peer == rank_) {
        continue;
      }
      if (activity->misses(peer)) {
        seen.waitsFor.push_back(peer);
      } else if (activity->needs(peer)) {
        needed.push_back(peer);
      }
    }
    if (seen.waitsFor.empty()) {
      seen.waitsFor = std::move(needed);
    }
    seen.why = isClosed_ ? std::string() : activity->waitingFor();
    sight.inFlight.push_back(std::move(seen));
  }
}

std::vector<std::int64_t> Engine::globalRanks() const {
  const MutexLock lock(ranksMutex_);
  return globalRanks_;
}

void Engine::setGlobalRanks(std::vector<std::int64_t> ranks) {
  SW_CHECK(ranks.size() == static_cast<std::size_t>(worldSize_));
  const MutexLock lock(ranksMutex_);
  globalRanks_ = std::move(ranks);
}

}  // namespace shardwire::internal
