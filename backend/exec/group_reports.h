// The part of a group for reports to people: this rank's activity, the flight recorder, and the job's rank of each
// member. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/exec/driving.h"
#include "backend/exec/group_state.h"
#include "backend/exec/op_recorder.h"
#include "backend/exec/sight.h"

namespace shardwire::internal {

class GroupReports {
 public:
  GroupReports(Driving& driving, const Peers& peers, const GroupFacts& facts, const OpRecorder& recorder);

  // Waits for the group's lock for `patience` at most; without the lock, returns the contents of the flight recorder.
  GroupSight sight(Duration patience) const;
  const OpRecorder& recorder() const { return recorder_; }
  // The job's rank of each member; 0, 1, 2... until setGlobalRanks().
  std::vector<std::int64_t> globalRanks() const;
  void setGlobalRanks(std::vector<std::int64_t> ranks);

 private:
  Driving& driving_;
  const Peers& peers_;
  const GroupFacts& facts_;
  const OpRecorder& recorder_;
  mutable Mutex ranksMutex_;
  std::vector<std::int64_t> globalRanks_ SW_GUARDED_BY(ranksMutex_);
  const Clock::time_point madeAt_ = Clock::now();
};

}  // namespace shardwire::internal
