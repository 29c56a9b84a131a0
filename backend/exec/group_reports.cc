// The state of a group as seen from this rank, for people. The asking thread must disturb no other thread: this thread
// tries the lock for a moment, and while another thread holds the lock (a long copy) reports the contents of the flight
// recorder, whose lock is held for nanoseconds.
#include "backend/exec/group_reports.h"

#include <numeric>
#include <string>
#include <thread>
#include <utility>

namespace shardwire::internal {

namespace {

constexpr std::size_t kLatest = 32;
constexpr Duration kTryEvery = std::chrono::milliseconds(1);

// "rank 1: shm, cross-memory reads" -> "shm, cross-memory reads"
std::string withoutRank(const std::string& text) {
  const std::size_t colon = text.find(": ");
  return colon == std::string::npos ? text : text.substr(colon + 2);
}

// Reads the flight recorder, which does not know the ranks that an operation waits for.
void lookAtRecord(GroupSight& sight) {
  const auto now = Clock::now();
  for (const RecordedOp& op : sight.latest) {
    sight.sequence = std::max(sight.sequence, op.seq);
    if (!op.isOver()) {
      sight.inFlight.push_back(
          {op.seq, op.description.text(), now - op.called, op.timeout, {}, "another thread of this rank moves it on"});
    }
  }
}

void lookAtPeers(const GroupState& state, GroupSight& sight) {
  for (PeerSight& peer : sight.peers) {
    const EdgeBytes& traffic = state.operations.traffic(peer.rank);
    peer.sentBytes = traffic.sends;
    peer.receivedBytes = traffic.receives;
    peer.gone = state.links.isGone(peer.rank) ? state.links.whyGone(peer.rank).message() : std::string();
    if (!state.links.isClosed() && peer.rank != sight.rank) {
      peer.transport = withoutRank(state.context.connection(peer.rank).describe());
    }
  }
}

OperationSight sightOf(const GroupState& state, const Activity& activity) {
  const auto since = activity.started == Clock::time_point{} ? Duration(0) : Duration(Clock::now() - activity.started);
  OperationSight seen{activity.call, activity.description.text(), since, activity.timeout, {}, {}};
  if (state.links.isClosed()) {
    return seen;
  }
  std::vector<Rank> needed;
  for (Rank peer = 0; peer < state.context.worldSize; ++peer) {
    if (peer == state.context.rank) {
      continue;
    }
    if (activity.misses(peer)) {
      seen.waitsFor.push_back(peer);
    } else if (activity.needs(peer)) {
      needed.push_back(peer);
    }
  }
  if (seen.waitsFor.empty()) {
    seen.waitsFor = std::move(needed);
  }
  seen.why = activity.waitingFor();
  return seen;
}

void lookAtState(const GroupState& state, GroupSight& sight) {
  const Operations& operations = state.operations;
  sight.failure = operations.failure().message();
  sight.sequence = operations.numCalls();
  sight.timeout = operations.timeout();
  sight.lastCall = operations.describeLatest();
  lookAtPeers(state, sight);
  for (const auto& activity : operations.inFlight()) {
    const bool isLaterPart =
        !sight.inFlight.empty() && activity->call != 0 && activity->call == sight.inFlight.back().seq;
    if (!isLaterPart) {
      sight.inFlight.push_back(sightOf(state, *activity));
    }
  }
}

}  // namespace

GroupReports::GroupReports(Driving& driving, const Peers& peers, const GroupFacts& facts, const OpRecorder& recorder)
    : driving_(driving),
      peers_(peers),
      facts_(facts),
      recorder_(recorder),
      globalRanks_(static_cast<std::size_t>(facts.worldSize)) {
  std::iota(globalRanks_.begin(), globalRanks_.end(), 0);
}

GroupSight GroupReports::sight(Duration patience) const {
  GroupSight sight{.id = peers_.groupId, .name = facts_.name, .rank = facts_.rank, .worldSize = facts_.worldSize};
  sight.globalRanks = globalRanks();
  sight.age = Clock::now() - madeAt_;
  sight.isRecorded = recorder_.isOn();
  sight.latest = recorder_.latest(kLatest);
  for (std::size_t peer = 0; peer < peers_.names.size(); ++peer) {
    sight.peers.push_back(
        {.rank = static_cast<Rank>(peer), .host = peers_.names[peer].host, .pid = peers_.names[peer].pid});
  }
  const Deadline until = Clock::now() + patience;
  while (!driving_.tryLocked([&](const GroupState& state) { lookAtState(state, sight); })) {
    if (Clock::now() >= until) {
      sight.isBusy = true;
      lookAtRecord(sight);
      return sight;
    }
    std::this_thread::sleep_for(kTryEvery);
  }
  return sight;
}

std::vector<std::int64_t> GroupReports::globalRanks() const {
  const MutexLock lock(ranksMutex_);
  return globalRanks_;
}

void GroupReports::setGlobalRanks(std::vector<std::int64_t> ranks) {
  SW_CHECK(ranks.size() == static_cast<std::size_t>(facts_.worldSize));
  const MutexLock lock(ranksMutex_);
  globalRanks_ = std::move(ranks);
}

}  // namespace shardwire::internal
