// What a rank does in a group, as a plain value: for `python -m shardwire.status`, whose text backend/sight/status_json makes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/exec/op_recorder.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct PeerSight {
  Rank rank = 0;
  std::string host;
  std::uint32_t pid = 0;
  std::string transport;  // "shm, cross-memory reads 7.2 GB/s"; empty: this rank, or not known
  std::string gone;       // why it does not answer any more; empty: it does
  std::uint64_t sentBytes = 0;
  std::uint64_t receivedBytes = 0;
};

struct OperationSight {
  std::uint64_t seq = 0;  // Activity::call; 0: a message
  std::string what;       // "all_reduce(float32[1024], sum)"
  Duration since{0};
  Duration timeout{0};
  std::vector<Rank> waitsFor;  // those that did not arrive; where all did, those that are not done
  std::string why;             // "rank 1 did not arrive"
};

struct GroupSight {
  std::string id;  // equal on all ranks of the group, and no other group's
  std::string name;
  Rank rank = 0;
  int worldSize = 1;
  std::vector<std::int64_t> globalRanks;
  bool isBusy = false;         // the lock was not to be had: what follows is what the flight recorder knows
  std::string failure;         // empty: the group can be used
  std::uint64_t sequence = 0;  // calls so far
  Duration timeout{0};
  Duration age{0};
  bool isRecorded = false;  // whether the flight recorder is on
  std::vector<PeerSight> peers;
  std::vector<OperationSight> inFlight;  // calls, oldest first, each as its first part that is not over
  std::string lastCall;                  // the latest operation that was called, when it is not recorded
  std::vector<RecordedOp> latest;        // oldest first
};

}  // namespace shardwire::internal
