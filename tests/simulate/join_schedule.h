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
  kStoreEnds,    // the store ends for all processes
  kCannotJoin,   // the process cannot join a rank late, and the other rank does not see this
  kPartition,    // nothing passes between the process and another for a time
  kOtherRing,    // the process has another length of lanes
  kOtherTls,     // the process does not encrypt, and the others must
};

// A partition up to this time is shorter than all timeouts.
inline constexpr Time kHarmlessPartition = 2 * kSecond;

struct JoinFault {
  JoinFaultKind kind = JoinFaultKind::kKill;
  int number = 0;  // in the schedule as drawn
  Rank process = 0;
  std::size_t group = 0;  // kAbsent, kWrongSize, kCannotStart
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
};

struct JoinSchedule {
  std::uint64_t seed = 0;
  int numRanks = 2;  // and processes
  std::vector<std::int32_t> hosts;
  std::vector<Members> groups;  // the first has all processes
  JoinOrder order = JoinOrder::kOneAfterAnother;
  int numRounds = 1;  // kOneAfterAnother: how often the group is made
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

  Rank rankIn(std::size_t group, Rank process) const;
  Options optionsOf(Rank process) const;
  bool has(JoinFaultKind kind) const;
  // Whether the group may fail because of the fault.
  bool isLost(const JoinFault& fault, std::size_t group) const;
  bool mayFail(std::size_t group) const;
  std::string labelOf(std::size_t group) const { return "g" + std::to_string(group); }
};

JoinSchedule drawJoins(std::uint64_t seed, const Without& without = {}, Draws draws = Draws::kUsual);
// Draws the behaviour of the wires, where there are wires (join_transport.cc).
void drawTransport(JoinSchedule& schedule);
// Draws operations that fetch over the wires (join_fetches.cc).
void drawFetches(JoinSchedule& schedule);
std::string describe(const JoinSchedule& schedule);
std::string describe(const JoinFault& fault, const JoinSchedule& schedule);
std::string describeFetches(const JoinSchedule& schedule);

}  // namespace shardwire::simulate
