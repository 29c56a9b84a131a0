// The contents of one simulation, drawn from a seed: ranks, hosts, options, operations and faults. Each operation has a
// separate seed, so removing operations or faults changes no other operation or fault.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/options.h"
#include "tests/simulate/network.h"
#include "tests/support/naive_model.h"
#include "tests/support/random_collective.h"
#include "tests/support/random_spec.h"

namespace shardwire::simulate {

enum class OperationKind : std::uint8_t {
  kCollective,  // a call of Communicator, or messages
  kCompiled,    // compileOp over random boxes, and runs of the op
  kChain,       // sums and broadcasts of one tensor, called one after the other without a wait
  kRequests,    // puts, gets and adds to memory of other ranks
  kExchange,    // bytes of all ranks for all ranks
};

struct ChainStep {
  bool isSum = true;
  Rank root = 0;  // of a broadcast
};

struct Operation {
  OperationKind kind = OperationKind::kCollective;
  int number = 0;  // in the schedule as drawn
  std::size_t group = 0;
  std::uint64_t seed = 0;
  testing::RandomCall call;      // kCollective
  testing::RandomCase specs;     // kCompiled
  testing::RankBytes inputs;     // kCompiled
  testing::RankBytes expected;   // kCompiled
  int numRuns = 1;               // kCompiled
  std::vector<ChainStep> chain;  // kChain
  std::int64_t chainElems = 0;   // kChain
  bool waitsAtOnce = false;
};

struct OperationOptions {
  testing::CallOptionsForTest calls;
  bool hasMoreKinds = false;  // requests and exchanges, too
  int mostElements = 600;     // of a tensor of a compiled op
};

// An operation of a group of `numRanks`.
Operation drawOperation(std::uint64_t seed, int number, int numRanks, const OperationOptions& options);

enum class FaultKind : std::uint8_t {
  kKill,      // the process dies
  kHostDies,  // the process's host falls silent
  kStop,      // the process does nothing for a time
  kCut,       // nothing passes between two ranks any more
  kHold,      // nothing passes between two ranks for a time
  kRevoke,    // the rank revokes the group
};

// Ranks are numbers of processes.
struct Fault {
  FaultKind kind = FaultKind::kKill;
  int number = 0;         // in the schedule as drawn
  std::size_t group = 0;  // kRevoke
  Rank rank = 0;
  Rank peer = 0;      // kCut, kHold
  Time after = 0;     // since the begin
  int numFrames = 0;  // kKill, kHostDies: not 0: within the turn that sends this frame, instead of a time
  Time duration = 0;  // kStop, kHold
};

// A group of several, by rank: the numbers of its processes.
using Members = std::vector<Rank>;

// How a program with several groups goes on after the failure of a group.
enum class AfterFailure : std::uint8_t {
  kGoesOn,  // the process ends the failed group, and goes on in the other groups
  kStops,   // the process calls nothing any more, and ends its groups some time later
};

// Groups that the living processes make anew, one after the other.
inline constexpr std::size_t kMostMadeAnew = 2;

struct Schedule {
  std::uint64_t seed = 0;
  int numRanks = 2;                 // and processes
  std::vector<std::int32_t> hosts;  // by process
  std::vector<Members> groups;      // one group has all processes, in their order
  bool hasThreads = false;          // each process has a thread for each of its groups, in place of one for all
  AfterFailure afterFailure = AfterFailure::kGoesOn;
  Time longestStay = 0;  // kStops: of a process, before it ends its groups
  Options options;
  NetworkOptions network;
  Time longestPause = 0;   // of a rank between two calls
  std::size_t window = 1;  // operations that a rank has in flight
  std::vector<Operation> operations;
  std::vector<Fault> faults;
  bool makesAnew = false;  // after a loss the living processes make the group anew
  Time longestIdle = 0;    // makesAnew: of a rank before its first call in a group made anew

  // Whether a lane may have no room for a frame.
  bool hasFullLanes() const;
  bool hasSeveralGroups() const { return groups.size() > 1 && !makesAnew; }
  // Of the traces: processes have other ranks in each of several groups.
  const char* rowName() const { return hasSeveralGroups() ? "process" : "rank"; }
  const char* rowsName() const { return hasSeveralGroups() ? "processes" : "ranks"; }
  // "" of the only group, else "g0", "g1"; "r1", "r2": made anew.
  std::string labelOf(std::size_t group) const;
  // -1: the process is not in the group.
  Rank rankIn(std::size_t group, Rank process) const;
  // Whether the fault takes a rank or a link of this group away, or stops a rank for longer than the timeout.
  bool isLost(const Fault& fault, std::size_t group) const;
  // Whether operations of the group may fail because of a fault in the group.
  bool mayFail(std::size_t group) const;
};

// The numbers of the operations and faults to leave out.
struct Without {
  std::vector<int> operations;
  std::vector<int> faults;
};

// The choices among which the seeds draw.
enum class Draws : std::uint8_t {
  kUsual,
  kManyFaults,  // rare conditions, often: losses one after the other, stops as long as the timeout, late links, full
                // lanes
};

Schedule drawSchedule(std::uint64_t seed, const Without& without = {}, Draws draws = Draws::kUsual);
// The operations of a group that was made anew.
std::vector<Operation> drawOperationsAnew(const Schedule& schedule, std::size_t group);
// The notice of a rank that revokes the group.
std::string revocationBy(Rank rank);
std::string describe(const Operation& operation);
std::string describe(const Fault& fault, const Schedule& schedule);
std::string describe(const Schedule& schedule);

}  // namespace shardwire::simulate
