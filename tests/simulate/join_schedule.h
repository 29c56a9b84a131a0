// The contents of one simulation of joins, drawn from a seed: processes, groups, their orders, and faults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/simulate/schedule.h"

namespace shardwire::simulate {

enum class JoinFaultKind : std::uint8_t {
  kKill,         // the process dies
  kHostDies,     // the process's host falls silent
  kStop,         // the process does nothing for a time
  kAbsent,       // the process never comes to the group
  kWrongSize,    // the process comes with another world size
  kCannotStart,  // the rank cannot make its own ends
  kStoreSilent,  // the store does not answer the process from some request on
  kStoreEnds,    // the store ends for all processes; of two jobs: the store of the group
  kCannotJoin,   // the process cannot join a rank late, and the other rank does not see this
  kPartition,    // nothing passes between the process and another for a time
  kOtherRing,    // the process has another length of lanes
  kOtherTls,     // the process does not encrypt, and the others must
};

// A partition up to this time is shorter than all timeouts.
inline constexpr Time kHarmlessPartition = 2 * kSecond;
inline constexpr Time kForEver = 1000 * kSecond;

struct JoinFault {
  JoinFaultKind kind = JoinFaultKind::kKill;
  int number = 0;  // in the schedule as drawn
  Rank process = 0;
  std::size_t group = 0;  // kAbsent, kWrongSize, kCannotStart; of two jobs kStoreSilent, kStoreEnds
  Time after = 0;         // since the begin
  Time duration = 0;      // kStop, kPartition
  int numRequests = 0;    // kStoreSilent: so many are answered
  int numCalls = 0;       // kKill, kHostDies, kStop: happens in the system call on wires with this number, not by time
  Rank other = -1;        // kPartition
};

// A process without the job's token that dials the process.
struct JoinForeigner {
  Rank process = 0;
  Time after = 0;
};

enum class JoinOrder : std::uint8_t {
  kOneAfterAnother,  // a group is made, ended, and made again with the same store
  kAtOnce,           // a thread of each process makes each group
  kNested,           // a group of some ranks is made while the group of all is there
  kTwoJobs,          // the ranks of each job make a group, and at once all ranks of both jobs make a group
};

struct JoinSchedule {
  std::uint64_t seed = 0;
  int numRanks = 2;  // and processes
  std::vector<std::int32_t> hosts;
  std::vector<Members> groups;  // the first has all processes; kTwoJobs: publishers, subscribers, publishers and both
  JoinOrder order = JoinOrder::kOneAfterAnother;
  int numRounds = 1;  // kOneAfterAnother: how often the group is made; kTwoJobs: the group of both jobs
  bool isLazy = false;
  bool isWired = false;        // isLazy: on several hosts, joined over wires
  Time longestIdle = 0;        // isWired: before each operation
  Time timeout = 0;            // of the making of a group
  std::vector<Time> comesAt;   // by process
  Time longestPause = 0;       // before each group
  Time longestHandshake = 0;   // of a rank that answers a call, between two hosts
  Time longestStoreDelay = 0;  // of an answer
  Options options;
  NetworkOptions network;
  std::vector<JoinFault> faults;
  std::vector<JoinForeigner> foreigners;  // isWired
  bool beginsTogether = false;            // isWired: the first operation needs all links at once
  int piecesPercent = 0;                  // isWired: as in SocketOptions
  int shortPercent = 0;
  std::vector<bool> hasChecksums;  // isWired: by process
  // isWired: operations with long tensors, which the ranks of two hosts fetch from each other. By group; each round has
  // the same operations.
  std::vector<std::vector<Operation>> operations;
  std::size_t window = 1;           // operations that a rank has in flight
  std::vector<OrdinaryPath> paths;  // with operations: by process
  std::size_t bufferBytes = 0;      // of a socket, as in SocketOptions
  int recordsPerKey = 0;            // isWired: a TLS sender changes its key after so many records; 0: never
  // kTwoJobs: the steps of each job, after each of which the publishers commit a version; the fetches of the
  // subscribers
  int numSteps = 0;
  int numFetches = 0;
  std::int64_t numWeights = 0;
  bool isReplicated = false;  // each subscriber wants all weights

  Rank rankIn(std::size_t group, Rank process) const;
  Options optionsOf(Rank process) const;
  bool has(JoinFaultKind kind) const;
  // Whether the group may fail because of the fault.
  bool isLost(const JoinFault& fault, std::size_t group) const;
  bool mayFail(std::size_t group) const;
  std::string labelOf(std::size_t group) const { return "g" + std::to_string(group); }
  bool hasTwoJobs() const { return order == JoinOrder::kTwoJobs; }
  // Whether the group has the ranks of both jobs.
  bool isCommon(std::size_t group) const { return hasTwoJobs() && group == 2; }
  int numRoundsOf(std::size_t group) const { return hasTwoJobs() && !isCommon(group) ? 1 : numRounds; }
  // Two jobs have a store each, and meet in a third store.
  std::size_t numStores() const { return hasTwoJobs() ? groups.size() : 1; }
  std::size_t storeOf(std::size_t group) const { return hasTwoJobs() ? group : 0; }
};

JoinSchedule drawJoins(std::uint64_t seed, const Without& without = {}, Draws draws = Draws::kUsual);
// Two jobs, of which one publishes weights and the other fetches them (join_jobs.cc).
JoinSchedule drawTwoJobs(std::uint64_t seed, const Without& without = {}, Draws draws = Draws::kUsual);
// Draws the behaviour of the wires, where there are wires (join_transport.cc).
void drawTransport(JoinSchedule& schedule);
// Draws operations that fetch over the wires (join_fetches.cc).
void drawFetches(JoinSchedule& schedule);
// The processes of two jobs, and their groups.
void drawJobs(Random& random, JoinSchedule& schedule);
// The steps and fetches of two jobs, and faults of a whole job.
void drawSubscription(JoinSchedule& schedule);
std::string describe(const JoinSchedule& schedule);
std::string describe(const JoinFault& fault, const JoinSchedule& schedule);
std::string describeFetches(const JoinSchedule& schedule);
std::string describeJobs(const JoinSchedule& schedule);

}  // namespace shardwire::simulate
