// Operations over the product's tcp in a simulation of joins: ranks of two hosts fetch tensors from each other.
// drawFetches() draws from a separate generator, and all other seeds draw the same as before. Two thirds of the seeds
// with wires have operations. Tensors above a short limit are exposed, requested, and sent on the second stream; some
// ranks send frames only. Three quarters of these seeds have faults in the operations alone: a process dies or stops in
// a system call in the middle of an answer, or nothing passes between two processes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "tests/simulate/join_schedule.h"

namespace shardwire::simulate {
namespace {

constexpr std::uint64_t kJoinFetchesSalt = 0x66657eca;
// The system calls of a process until its first links are made, and until its operations are over, roughly.
constexpr int kFewestCalls = 10;
constexpr int kMostCallsToFetch = 600;
constexpr int kMostOperations = 6;
// Of one thousand tensors. Only edges above 256 KiB are fetched unless the options demand it.
constexpr int kHugeOfAuto = 100;
constexpr int kMostRanksOfAuto = 4;
constexpr int kMostRecordsPerKey = 20;

void drawPaths(Random& random, JoinSchedule& schedule) {
  const OrdinaryPath common =
      random.chance(20) && schedule.numRanks <= kMostRanksOfAuto ? OrdinaryPath::kAuto : OrdinaryPath::kCrossMemory;
  for (Rank process = 0; process < schedule.numRanks; ++process) {
    schedule.paths.push_back(random.chance(15) ? OrdinaryPath::kStaged : common);
  }
}

// Faults that leave the making of the group alone, and hit the operations.
JoinFault drawFaultOfOperations(Random& random, const JoinSchedule& schedule) {
  constexpr std::array kKinds = {JoinFaultKind::kKill, JoinFaultKind::kKill, JoinFaultKind::kHostDies,
                                 JoinFaultKind::kStop, JoinFaultKind::kStop, JoinFaultKind::kPartition};
  JoinFault fault{.kind = kKinds[static_cast<std::size_t>(random.between(0, std::ssize(kKinds) - 1))]};
  fault.process = static_cast<Rank>(random.between(0, schedule.numRanks - 1));
  fault.other = (fault.process + static_cast<Rank>(random.between(1, schedule.numRanks - 1))) % schedule.numRanks;
  fault.after = *std::ranges::max_element(schedule.comesAt) + random.between(0, 50 * kMillisecond);
  if (fault.kind == JoinFaultKind::kPartition) {
    fault.duration = random.chance(50) ? random.between(kMillisecond, kHarmlessPartition)
                                       : random.between(3 * kSecond, 20 * kSecond);
  } else {
    fault.other = -1;
    fault.numCalls =
        static_cast<int>(random.between(kFewestCalls, random.chance(50) ? kMostCallsToFetch / 5 : kMostCallsToFetch));
  }
  if (fault.kind == JoinFaultKind::kStop) {
    fault.duration = random.chance(50) ? random.between(2, 3) * schedule.timeout
                                       : random.between(kMillisecond, schedule.timeout / 8);
  }
  return fault;
}

void drawFaults(Random& random, JoinSchedule& schedule) {
  if (random.chance(25)) {
    return;
  }
  schedule.faults.clear();
  for (auto left = random.chance(60) ? random.between(1, 2) : 0; left > 0; --left) {
    schedule.faults.push_back(drawFaultOfOperations(random, schedule));
  }
}

}  // namespace

void drawFetches(JoinSchedule& schedule) {
  Random random(testing::mix64(schedule.seed ^ kJoinFetchesSalt));
  if (!schedule.isWired || !random.chance(66)) {
    return;
  }
  constexpr std::array<std::size_t, 4> kInline = {0, 0, 64, 1024};
  schedule.options.inlineBytes = kInline[static_cast<std::size_t>(random.between(0, 3))];
  schedule.window = static_cast<std::size_t>(random.between(1, 4));
  drawPaths(random, schedule);
  if (random.chance(50)) {  // else some ranks share a host
    std::iota(schedule.hosts.begin(), schedule.hosts.end(), 0);
  }
  // With delays of up to 20 ms for each frame, several MiB would take seconds in the short lanes.
  const bool hasHuge = std::ranges::find(schedule.paths, OrdinaryPath::kAuto) != schedule.paths.end() &&
                       schedule.network.spikePercent == 0;
  const OperationOptions options{.calls = {.inlineBytes = schedule.options.inlineBytes,
                                           .ringBytes = schedule.options.ringBytes,
                                           .numHuge = hasHuge ? kHugeOfAuto : 0},
                                 .hasMoreKinds = random.chance(20),
                                 .mostElements = 4000};  // more runs than a turn of the stream takes
  for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
    auto& operations = schedule.operations.emplace_back();
    for (auto left = random.between(1, kMostOperations); left > 0; --left) {
      operations.push_back(drawOperation(random.bits(), static_cast<int>(operations.size()),
                                         static_cast<int>(schedule.groups[group].size()), options));
      operations.back().group = group;
    }
  }
  drawFaults(random, schedule);
  constexpr std::array<std::size_t, 4> kBuffers = {0, 0, 8192, 65536};
  schedule.bufferBytes = kBuffers[static_cast<std::size_t>(random.between(0, 3))];
  if (random.chance(60)) {
    schedule.recordsPerKey = static_cast<int>(random.between(1, random.chance(50) ? 3 : kMostRecordsPerKey));
  }
}

std::string describeFetches(const JoinSchedule& schedule) {
  constexpr std::array kPaths = {"fetches from long edges", "fetches", "sends frames"};
  std::string text = schedule.bufferBytes == 0 ? "" : fmt::format("buffers of {} B\n", schedule.bufferBytes);
  for (std::size_t process = 0; process < schedule.paths.size(); ++process) {
    text += fmt::format("process {} {}\n", process, kPaths[static_cast<std::size_t>(schedule.paths[process])]);
  }
  for (std::size_t group = 0; group < schedule.operations.size(); ++group) {
    text += fmt::format("{}: inline {} B, {} operations in flight\n", schedule.labelOf(group),
                        schedule.options.inlineBytes, schedule.window);
    for (const Operation& each : schedule.operations[group]) {
      text += describe(each) + "\n";
    }
  }
  return text;
}

}  // namespace shardwire::simulate
