// All parts of a group that the group's lock guards, each with one task; code that needs several parts is here. Driving
// owns the state beside the lock, and shows the state to other code only under the lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/owner_process.h"
#include "backend/bootstrap/connect.h"
#include "backend/exec/disagreements.h"
#include "backend/exec/failure_callback.h"
#include "backend/exec/group_failure.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/operations.h"
#include "backend/exec/peer_links.h"
#include "backend/exec/point_to_point.h"
#include "backend/exec/questions.h"
#include "backend/exec/run_context.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// Facts that never change while the group lives.
struct GroupFacts {
  Rank rank = 0;
  int worldSize = 1;
  Options options;
  std::string name;
  std::string label;                // RunContext::label
  std::size_t segmentBytes = 0;     // RunContext::segmentBytes
  std::vector<std::int32_t> hosts;  // Peers::hosts
  bool hasCorePerRank = true;       // RunContext::hasCorePerRank
  // A child of fork() has neither the threads nor the peers: code that may run in a child checks this before taking any
  // lock.
  OwnerProcess owner{};
};

struct GroupState final : private RunHost {
  // `hasWork` is set when the progress thread has to look at the group.
  GroupState(Peers& peers, const GroupFacts& facts, OpRecorder& recorder, FailureCallback& callback,
             std::atomic<bool>& hasWork);

  // Takes frames, first from wires, and then steps the operations. True when anything moved.
  bool poll();
  // Moves a numbered operation inside its call, as Operations::moveNow().
  bool moveNow(Activity& activity, int polls);
  // Takes an operation, which is stepped from now on.
  void take(const std::shared_ptr<Activity>& activity);
  // True while operations are in flight, notices are unsent, or peers may send requests.
  bool isBusy() const { return !operations.inFlight().empty() || failure.hasNotices() || oneSided.isServing(); }

  std::weak_ptr<Driver> driver;  // moves operations along for waiters
  RunContext context;
  Operations operations;
  PeerLinks links;
  PointToPoint points;
  OneSided oneSided;
  GroupFailure failure;
  Disagreements disagreements;
  Questions questions;
  const Duration warnAfter;  // Options::warnAfter
  Clock::time_point lastSlowCheck{};

 private:
  bool takeLateLinks();
  // RunHost
  void fail(Status why) override { failure.fail(std::move(why)); }
  bool desync(Rank peer, std::uint64_t seq) override { return disagreements.ask(peer, seq); }
  bool refuseStale(Rank peer) override { return disagreements.refuseStale(peer); }
  void finish(Activity& activity, Status status) override { operations.finish(activity, std::move(status)); }
  void begin(Activity& activity) override { operations.begin(activity); }
  void want(Activity& activity) override;
};

}  // namespace shardwire::internal
