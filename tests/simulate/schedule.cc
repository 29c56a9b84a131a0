// drawSchedule() draws ranks, hosts and options from the seed, then the operations, each from a separate seed, and last
// the faults. Some schedules have several groups, with random numbers of their own. Faults of two kinds: harmless
// faults only delay, and all operations must succeed; the other faults take a rank or a link away, or stop a rank for
// longer than the timeout.
#include "tests/simulate/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "backend/transport/lanes.h"

namespace shardwire::simulate {
namespace {

using testing::mix64;

// Longer than kSilence (network.cc), after which a link counts as broken.
constexpr Time kTimeout = 20 * kSecond;
// Harmless faults last no longer than this, all together.
constexpr Time kLongestHarmless = 400 * kMillisecond;
constexpr Time kLongestSpike = 30 * kMillisecond;
// All stalls together are shorter than the timeout.
constexpr int kMostStalls = 3;

// Choices that came later have random numbers of their own, so all other seeds draw the same as before. The salts are
// chosen so that the older seeds of tests/simulate/bugs and of simulate_test.cc do not have these choices.
constexpr std::uint64_t kLatenessSalt = 0x6c6174f5;
constexpr std::uint64_t kSizeSalt = 0x73697a01;
constexpr std::uint64_t kControlSalt = 0x6374720c;
constexpr std::uint64_t kMoreKindsSalt = 0x6b6e6420;
constexpr std::uint64_t kRevokeSalt = 0x72766b0c;
constexpr std::uint64_t kGroupsSalt = 0x67720047;
constexpr std::uint64_t kAnewSalt = 0x726d013b;
constexpr std::uint64_t kIdleSalt = 0x69646c65;
constexpr std::uint64_t kStallSalt = 0x73746113;
constexpr std::uint64_t kFetchesSalt = 0x668c374e;
constexpr std::uint64_t kManyFaultsSalt = 0x6d616e79;

// More ranks exchange by trees. Some seeds only, since a simulation of so many ranks takes ten times as long.
constexpr int kFewestByTree = 17;
constexpr int kMostByTree = 20;
// A quarter of it is the longest frame. Texts of errors are cut there, so shorter lanes would lose ranks' names.
constexpr std::uint64_t kShortControlLane = 4096;

bool has(const std::vector<int>& numbers, int number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

Operation drawOperationOf(const Schedule& schedule, std::uint64_t seed, int number, std::size_t group,
                          bool hasMoreKinds) {
  const OperationOptions options{
      .calls = {.inlineBytes = schedule.options.inlineBytes, .ringBytes = schedule.options.ringBytes, .numHuge = 0},
      .hasMoreKinds = hasMoreKinds};
  Operation operation = drawOperation(seed, number, static_cast<int>(schedule.groups[group].size()), options);
  operation.group = group;
  return operation;
}

// Times and frames that hit the operations: most simulations are over after some milliseconds.
Fault drawFault(Random& random, int number, int numRanks, bool isHarmless) {
  Fault fault{.number = number};
  fault.rank = static_cast<Rank>(random.between(0, numRanks - 1));
  fault.peer = (fault.rank + static_cast<Rank>(random.between(1, numRanks - 1))) % numRanks;
  fault.after = random.between(0, random.chance(50) ? 2 * kMillisecond : 30 * kMillisecond);
  if (isHarmless) {
    fault.kind = random.chance(50) ? FaultKind::kStop : FaultKind::kHold;
    fault.duration = random.between(kMicrosecond, random.chance(50) ? 5 * kMillisecond : kLongestHarmless);
    return fault;
  }
  constexpr std::array kLethal = {FaultKind::kKill, FaultKind::kKill, FaultKind::kHostDies, FaultKind::kStop,
                                  FaultKind::kCut};
  fault.kind = kLethal[static_cast<std::size_t>(random.between(0, std::ssize(kLethal) - 1))];
  fault.duration = fault.kind == FaultKind::kStop ? random.between(2 * kTimeout, 4 * kTimeout) : 0;
  fault.numFrames = random.chance(60) ? static_cast<int>(random.between(1, random.chance(50) ? 10 : 100)) : 0;
  return fault;
}

void drawOptions(Random& random, Schedule& schedule) {
  constexpr std::array<std::size_t, 4> kInline = {0, 64, 1024, 8192};
  constexpr std::array<std::size_t, 4> kRing = {4096, 4096, 16384, 65536};
  Options& options = schedule.options;
  options.timeout = std::chrono::nanoseconds(kTimeout);
  options.inlineBytes = kInline[static_cast<std::size_t>(random.between(0, 3))];
  options.ringBytes = kRing[static_cast<std::size_t>(random.between(0, 3))];
  options.spin = std::chrono::microseconds(random.chance(70) ? 0 : random.between(1, 20));
  options.checkAll = random.chance(10);
  options.recordedOps = random.chance(50) ? 16 : 0;
  NetworkOptions& network = schedule.network;
  network.capacities = internal::laneCapacities(options);
  network.spikePercent = random.chance(50) ? static_cast<int>(random.between(1, 20)) : 0;
  network.longestSpike = random.between(100 * kMicrosecond, random.chance(20) ? kLongestSpike : 2 * kMillisecond);
  network.exposedPercent = static_cast<int>(random.between(0, 3)) * 33;
  network.shortWriteBytes = random.chance(40) ? static_cast<std::size_t>(random.between(16, 1500)) : 0;
  network.fullPercent = random.chance(40) ? static_cast<int>(random.between(1, 30)) : 0;
}

// Wires that serve fetches as the product's do: in parts, late, one answer before the other, or not at all.
void drawFetches(Schedule& schedule) {
  Random random(mix64(schedule.seed ^ kFetchesSalt));
  if (!random.chance(30)) {
    return;
  }
  const auto one = [&](const std::array<std::size_t, 4>& all) {
    return all[static_cast<std::size_t>(random.between(0, 3))];
  };
  schedule.network.fetches = {
      .isDrawn = true,
      .seed = random.bits(),
      .withoutPercent = random.chance(30) ? static_cast<int>(random.between(20, 80)) : 0,
      .mostParts = random.chance(70) ? static_cast<int>(random.between(2, 12)) : 1,
      .longestPause = random.between(kMicrosecond, random.chance(50) ? 50 * kMicrosecond : 5 * kMillisecond),
      .overtakes = random.chance(50),
      .refusedPercent = random.chance(40) ? static_cast<int>(random.between(1, 30)) : 0,
      .mostRequests = one({1, 3, 16, 16}),
      .minEdgeBytes = one({0, 0, 64, 2048}),
      .minRunBytes = one({0, 0, 16, 256}),
      .minLocalRunBytes = one({0, 64, 512, 4096})};
  schedule.network.exposedPercent = random.chance(60) ? 100 : schedule.network.exposedPercent;
  schedule.options.inlineBytes = one({0, 0, 64, 1024});
  if (random.chance(60)) {  // else few ranks fetch
    std::iota(schedule.hosts.begin(), schedule.hosts.end(), 0);
  }
}

// Two or three groups with random members in random orders. Returns the number of operations that come in addition.
int drawGroups(Schedule& schedule, Draws draws) {
  Members all(static_cast<std::size_t>(schedule.numRanks));
  std::iota(all.begin(), all.end(), 0);
  schedule.groups = {all};
  Random random(mix64(schedule.seed ^ kGroupsSalt));
  if (!random.chance(draws == Draws::kManyFaults ? 45 : 25) || schedule.numRanks >= kFewestByTree) {
    return 0;
  }
  const auto draw = [&](std::int64_t least) {
    Members members = all;
    random.shuffle(members);
    members.resize(
        static_cast<std::size_t>(random.chance(40) ? schedule.numRanks : random.between(least, schedule.numRanks)));
    return members;
  };
  schedule.groups = {draw(2), draw(2)};
  if (random.chance(35) && schedule.numRanks >= 4) {  // two disjoint groups
    random.shuffle(all);
    const auto cut = all.begin() + random.between(2, schedule.numRanks - 2);
    schedule.groups = {draw(2), Members(all.begin(), cut), Members(cut, all.end())};
  } else if (random.chance(20)) {
    schedule.groups.push_back(draw(2));
  }
  schedule.hasThreads = random.chance(50);
  if (random.chance(30)) {
    schedule.afterFailure = AfterFailure::kStops;
    schedule.longestStay = random.chance(50) ? 0 : random.between(0, 3 * kSecond);
    schedule.options.grace = random.chance(30) ? std::chrono::seconds(-1) : std::chrono::milliseconds(500);
  } else {
    // The process ends a failed group as soon as no other call holds its thread.
    schedule.options.grace = std::chrono::seconds(5);
  }
  return static_cast<int>(random.between(0, 10));
}

// One or two further losses. Some long stops end near the timeout, while the waiting operations expire.
void drawManyFaults(Schedule& schedule, std::vector<Fault>& faults) {
  Random random(mix64(schedule.seed ^ kManyFaultsSalt));
  for (auto left = random.between(1, 2); left > 0; --left) {
    faults.push_back(drawFault(random, static_cast<int>(faults.size()), schedule.numRanks, false));
  }
  NetworkOptions& network = schedule.network;
  if (random.chance(50) && network.numStalls == 0) {
    network.lateness = random.chance(60) ? Lateness::kAll : Lateness::kOtherHosts;
  }
  for (Fault& fault : faults) {
    // Where a link is missing, the question for the stopped rank may come after the stop.
    if (fault.kind == FaultKind::kStop && fault.duration > kLongestHarmless && network.lateness == Lateness::kNone) {
      fault.duration = random.chance(50) ? kTimeout + random.between(-kLongestSpike, kLongestSpike) : fault.duration;
    }
  }
  if (random.chance(50)) {
    network.fullPercent = static_cast<int>(random.between(10, 60));
  }
  if (random.chance(30) && schedule.numRanks < kFewestByTree) {
    network.capacities[static_cast<std::size_t>(internal::Lane::kControl)] = kShortControlLane;
  }
  if (schedule.afterFailure == AfterFailure::kStops && random.chance(50)) {
    schedule.longestStay = random.between(0, 20 * kSecond);
  }
}

// A group of the process, if it has one.
std::size_t drawGroupOf(const Schedule& schedule, Rank process) {
  const auto begin = static_cast<std::size_t>(Random(mix64(schedule.seed + 1)).between(0, 2));
  for (std::size_t i = 0; i < schedule.groups.size(); ++i) {
    if (const std::size_t group = (begin + i) % schedule.groups.size(); schedule.rankIn(group, process) >= 0) {
      return group;
    }
  }
  return 0;
}

}  // namespace

bool Schedule::hasFullLanes() const {
  return network.fullPercent > 0 ||
         network.capacities[static_cast<std::size_t>(internal::Lane::kControl)] == kShortControlLane;
}

std::string Schedule::labelOf(std::size_t group) const {
  if (makesAnew) {
    return group == 0 ? "" : fmt::format("r{}", group);
  }
  return hasSeveralGroups() ? fmt::format("g{}", group) : "";
}

Rank Schedule::rankIn(std::size_t group, Rank process) const {
  const Members& members = groups[group];
  const auto found = std::ranges::find(members, process);
  return found == members.end() ? -1 : static_cast<Rank>(found - members.begin());
}

bool Schedule::isLost(const Fault& fault, std::size_t group) const {
  if (rankIn(group, fault.rank) < 0) {
    return false;
  }
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kHostDies:
      return true;
    case FaultKind::kStop:
      return fault.duration > kLongestHarmless;
    case FaultKind::kCut:
      return rankIn(group, fault.peer) >= 0;
    case FaultKind::kRevoke:
      return fault.group == group;
    case FaultKind::kHold:
      break;
  }
  return false;
}

bool Schedule::mayFail(std::size_t group) const {
  return std::ranges::any_of(faults, [&](const Fault& fault) { return isLost(fault, group); });
}

Operation drawOperation(std::uint64_t seed, int number, int numRanks, const OperationOptions& options) {
  Random random(seed);
  Operation operation{.number = number, .seed = seed};
  operation.waitsAtOnce = random.chance(20);
  const auto draw = random.between(0, 99);
  if (Random kind(mix64(seed ^ kMoreKindsSalt)); options.hasMoreKinds && kind.chance(30)) {
    operation.kind = kind.chance(60) ? OperationKind::kRequests : OperationKind::kExchange;
  } else if (draw < 60) {
    operation.call = testing::makeRandomBatch(seed, {numRanks}, options.calls).front();
  } else if (draw < 85) {
    operation.kind = OperationKind::kCompiled;
    operation.specs = testing::makeRandomCase(
        seed,
        {.minRanks = numRanks, .maxRanks = numRanks, .maxElements = random.chance(20) ? options.mostElements : 48});
    operation.inputs = testing::fillInputs(seed, operation.specs.specs);
    operation.expected = testing::expectedOutputs(operation.specs.specs, operation.inputs);
    operation.numRuns = static_cast<int>(random.between(1, 3));
  } else {
    operation.kind = OperationKind::kChain;
    operation.chainElems = random.chance(30) ? random.between(500, 4000) : random.between(1, 100);
    operation.chain.resize(static_cast<std::size_t>(random.between(2, 6)));
    for (ChainStep& step : operation.chain) {
      step = {.isSum = random.chance(50), .root = static_cast<Rank>(random.between(0, numRanks - 1))};
    }
  }
  return operation;
}

std::vector<Operation> drawOperationsAnew(const Schedule& schedule, std::size_t group) {
  Random random(mix64(schedule.seed ^ kAnewSalt) + group);
  std::vector<Operation> operations(static_cast<std::size_t>(random.between(1, 5)));
  for (int number = 100 * static_cast<int>(group); Operation & each : operations) {
    const std::uint64_t own = random.bits();
    each = drawOperationOf(schedule, own, number++, group, random.chance(20));
  }
  return operations;
}

Schedule drawSchedule(std::uint64_t seed, const Without& without, Draws draws) {
  Random random(mix64(seed ^ 0x7363686564));
  Schedule schedule{.seed = seed};
  schedule.numRanks = static_cast<int>(random.between(2, 6));
  if (Random size(mix64(seed ^ kSizeSalt)); size.chance(2)) {
    schedule.numRanks = static_cast<int>(size.between(kFewestByTree, kMostByTree));
  }
  const auto numHosts = random.between(1, schedule.numRanks);
  for (Rank rank = 0; rank < schedule.numRanks; ++rank) {
    schedule.hosts.push_back(static_cast<std::int32_t>(random.between(0, numHosts - 1)));
  }
  drawOptions(random, schedule);
  if (Random control(mix64(seed ^ kControlSalt)); control.chance(15) && schedule.numRanks < kFewestByTree) {
    schedule.network.capacities[static_cast<std::size_t>(internal::Lane::kControl)] = kShortControlLane;
  }
  drawFetches(schedule);
  const int numFurther = drawGroups(schedule, draws);
  const bool hasMoreKinds = Random(mix64(seed ^ kMoreKindsSalt)).chance(20);
  Random lateness(mix64(seed ^ kLatenessSalt));
  if (lateness.chance(30)) {
    schedule.network.lateness = lateness.chance(60) ? Lateness::kAll : Lateness::kOtherHosts;
  }
  // Late links: a rank that leaves stays for half a second for ranks without a link, not for as long as a stall.
  if (Random stall(mix64(seed ^ kStallSalt)); stall.chance(8) && schedule.network.lateness == Lateness::kNone) {
    schedule.network.numStalls = static_cast<int>(stall.between(1, kMostStalls));
  }
  schedule.longestPause = random.chance(30) ? 0 : random.between(1, random.chance(20) ? 5000 : 300) * kMicrosecond;
  schedule.window = static_cast<std::size_t>(random.between(1, 6));
  const auto numOperations = static_cast<int>(random.between(1, draws == Draws::kManyFaults ? 5 : 12)) + numFurther;
  for (int number = 0; number < numOperations; ++number) {
    if (!has(without.operations, number)) {
      const std::uint64_t own = mix64(seed * 1000 + static_cast<std::uint64_t>(number));
      const auto group = Random(mix64(own ^ kGroupsSalt)).between(0, std::ssize(schedule.groups) - 1);
      schedule.operations.push_back(
          drawOperationOf(schedule, own, number, static_cast<std::size_t>(group), hasMoreKinds));
    }
  }
  std::vector<Fault> faults;
  for (auto left = random.chance(50) ? random.between(1, 3) : 0; left > 0; --left) {
    faults.push_back(drawFault(random, static_cast<int>(faults.size()), schedule.numRanks, true));
  }
  for (auto left = random.chance(50) ? (random.chance(20) ? 2 : 1) : 0; left > 0; --left) {
    faults.push_back(drawFault(random, static_cast<int>(faults.size()), schedule.numRanks, false));
  }
  if (draws == Draws::kManyFaults) {
    drawManyFaults(schedule, faults);
  }
  if (Random revoke(mix64(seed ^ kRevokeSalt)); revoke.chance(10)) {
    faults.push_back(drawFault(revoke, static_cast<int>(faults.size()), schedule.numRanks, true));
    faults.back().kind = FaultKind::kRevoke;
    faults.back().duration = 0;
    faults.back().group = drawGroupOf(schedule, faults.back().rank);
  }
  for (const Fault& fault : faults) {
    if (!has(without.faults, fault.number)) {
      schedule.faults.push_back(fault);
    }
  }
  // A cut link would be cut in the new group, too.
  const bool isCut = std::ranges::any_of(faults, [](const Fault& fault) { return fault.kind == FaultKind::kCut; });
  schedule.makesAnew = Random(mix64(seed ^ kAnewSalt)).chance(20) && schedule.groups.size() == 1 && !isCut &&
                       schedule.numRanks < kFewestByTree;
  // Longer than the grace time, after which the failure of another group counts.
  Random idle(mix64(seed ^ kIdleSalt));
  schedule.longestIdle = schedule.makesAnew && idle.chance(30) ? idle.between(2, 6) * kSecond : 0;
  return schedule;
}

}  // namespace shardwire::simulate
