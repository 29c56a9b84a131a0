// The activity of a rank in a group, as a plain value: for `python -m shardwire.status`, whose text
// backend/sight/status_json makes.
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
  std::string transport;  // "shm, cross-memory reads 7.2 GB/s"; empty: this rank, or unknown
  std::string gone;       // why the peer does not answer any more; empty: the peer answers
  std::uint64_t sentBytes = 0;
  std::uint64_t receivedBytes = 0;
};

struct OperationSight {
  std::uint64_t seq = 0;  // Activity::call; 0: a message
  std::string what;       // "all_reduce(float32[1024], sum)"
  Duration since{0};
  Duration timeout{0};
  std::vector<Rank> waitsFor;  // ranks that did not arrive; if all arrived, ranks that are not done
  std::string why;             // "rank 1 did not arrive"
};

struct GroupSight {
  std::string id;  // equal on all ranks of the group, and different from other groups
  std::string name;
  Rank rank = 0;
  int worldSize = 1;
  std::vector<std::int64_t> globalRanks;
  bool isBusy = false;         // the lock was busy: the following members come from the flight recorder
  std::string failure;         // empty: the group can be used
  std::uint64_t sequence = 0;  // calls so far
  Duration timeout{0};
  Duration age{0};
  bool isRecorded = false;  // whether the flight recorder is on
  std::vector<PeerSight> peers;
  std::vector<OperationSight> inFlight;  // calls, oldest first, each as the first part in flight
  std::string lastCall;                  // the latest called operation, also without the flight recorder
  std::vector<RecordedOp> latest;        // oldest first
};

}  // namespace shardwire::internal
