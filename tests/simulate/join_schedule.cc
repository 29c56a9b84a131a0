// drawJoins() draws the processes, hosts and times from the seed, then the groups, and last the faults. Half of the
// seeds have no fault that takes something away, and then every rank must join. Late ranks come within the timeout. The
// faults of one kind only delay (a short stop); each other kind must show in the errors of the waiting ranks.
// describe() gives the text at the head of a trace. The behaviour of wires is drawn in join_transport.cc, and two jobs
// in join_jobs.cc.
#include "tests/simulate/join_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "backend/transport/lanes.h"

namespace shardwire::simulate {
namespace {

constexpr int kMostRanks = 9;
constexpr std::uint64_t kWiresSalt = 0x776972a1;
constexpr std::uint64_t kHandshakesSalt = 0x68616e32;
constexpr std::uint64_t kDeathSalt = 0x64656131;

JoinFault drawFault(Random& random, const JoinSchedule& schedule) {
  constexpr std::array kKinds = {JoinFaultKind::kKill,      JoinFaultKind::kKill,        JoinFaultKind::kKill,
                                 JoinFaultKind::kHostDies,  JoinFaultKind::kStop,        JoinFaultKind::kAbsent,
                                 JoinFaultKind::kWrongSize, JoinFaultKind::kCannotStart, JoinFaultKind::kStoreSilent,
                                 JoinFaultKind::kStoreEnds};
  JoinFault fault{.kind = kKinds[static_cast<std::size_t>(random.between(0, std::ssize(kKinds) - 1))]};
  fault.group = static_cast<std::size_t>(random.between(0, std::ssize(schedule.groups) - 1));
  const Members& members = schedule.groups[fault.group];
  fault.process = members[static_cast<std::size_t>(random.between(0, std::ssize(members) - 1))];
  const Time latest = random.chance(50) ? 5 * kMillisecond : random.chance(70) ? kSecond : schedule.timeout;
  fault.after = random.between(0, latest);
  if (random.chance(60)) {  // while the process joins
    fault.after = schedule.comesAt[static_cast<std::size_t>(fault.process)] + random.between(0, 3 * kMillisecond);
  }
  fault.duration = fault.kind == JoinFaultKind::kStop ? random.between(2, 3) * schedule.timeout : 0;
  fault.numRequests = static_cast<int>(random.between(0, random.chance(70) ? 12 : 60));
  return fault;
}

void drawGroups(Random& random, JoinSchedule& schedule) {
  Members all(static_cast<std::size_t>(schedule.numRanks));
  std::iota(all.begin(), all.end(), 0);
  schedule.groups = {all};
  if (random.chance(50) || schedule.numRanks < 3) {
    schedule.numRounds = random.chance(60) ? static_cast<int>(random.between(2, 4)) : 1;
    return;
  }
  schedule.order = random.chance(50) ? JoinOrder::kAtOnce : JoinOrder::kNested;
  random.shuffle(all);
  all.resize(static_cast<std::size_t>(random.between(2, schedule.numRanks)));
  schedule.groups.push_back(all);
}

// Links over wires came later. Their random numbers are separate, and all other seeds draw the same as before.
void drawWires(JoinSchedule& schedule) {
  Random random(testing::mix64(schedule.seed ^ kWiresSalt));
  if (!schedule.isLazy || !random.chance(50)) {
    return;
  }
  schedule.isWired = true;
  schedule.options.jobToken = "the token of the job";
  schedule.network.lateness = Lateness::kSameHost;
  const auto numHosts = random.between(2, schedule.numRanks);
  for (std::int32_t& host : schedule.hosts) {
    host = static_cast<std::int32_t>(random.between(0, numHosts - 1));
  }
  schedule.longestIdle = random.chance(50) ? random.between(0, kMillisecond) : random.between(0, 2 * kSecond);
  for (JoinFault& fault : schedule.faults) {
    if (random.chance(50)) {  // while the first operations make the links
      fault.after = *std::ranges::max_element(schedule.comesAt) + random.between(0, 10 * kMillisecond);
    }
  }
  if (random.chance(20)) {
    schedule.faults = {
        {.kind = JoinFaultKind::kCannotJoin, .process = static_cast<Rank>(random.between(0, schedule.numRanks - 1))}};
  }
  for (auto left = random.chance(50) ? random.between(1, 3) : 0; left > 0; --left) {
    schedule.foreigners.push_back({.process = static_cast<Rank>(random.between(0, schedule.numRanks - 1)),
                                   .after = random.between(0, random.chance(50) ? 5 * kMillisecond : kSecond)});
  }
}

// Few ranks, and a long timeout: all handshakes together must fit.
void drawHandshakes(JoinSchedule& schedule) {
  Random random(testing::mix64(schedule.seed ^ kHandshakesSalt));
  if (random.chance(30) && !schedule.isLazy && schedule.numRanks <= 4 && schedule.timeout > 6 * kSecond) {
    schedule.longestHandshake = random.between(1, 500) * kMillisecond;
  }
}

// Rank 0 answers a rank while another rank of that rank's host dies. The two ranks of the host have attached to each
// other, so rank 0 alone sees the death and hangs up. The reason reaches the store a little later than the end of the
// connection.
void drawDeathInHandshake(JoinSchedule& schedule, Draws draws) {
  Random random(testing::mix64(schedule.seed ^ kDeathSalt));
  const bool isFit = !schedule.isLazy && schedule.groups.size() == 1 && schedule.numRanks >= 3 &&
                     schedule.numRanks <= 4 && schedule.timeout > 6 * kSecond;
  if (!isFit || !random.chance(draws == Draws::kManyFaults ? 60 : 25)) {
    return;
  }
  schedule.numRounds = 1;
  schedule.longestHandshake = random.between(200, 500) * kMillisecond;
  schedule.longestStoreDelay = random.between(300 * kMicrosecond, 30 * kMillisecond);
  for (std::size_t process = 0; process < schedule.hosts.size(); ++process) {
    schedule.hosts[process] = process == 0 ? 0 : 1;
  }
  const auto comes = *std::ranges::max_element(schedule.comesAt);
  schedule.faults = {{.kind = JoinFaultKind::kKill,
                      .process = static_cast<Rank>(random.between(1, schedule.numRanks - 1)),
                      .after = comes + random.between(0, 2 * schedule.longestHandshake)}};
}

}  // namespace

Rank JoinSchedule::rankIn(std::size_t group, Rank process) const {
  const auto found = std::ranges::find(groups[group], process);
  return found == groups[group].end() ? -1 : static_cast<Rank>(found - groups[group].begin());
}

bool JoinSchedule::isLost(const JoinFault& fault, std::size_t group) const {
  switch (fault.kind) {
    case JoinFaultKind::kStoreEnds:
      return !hasTwoJobs() || fault.group == group;
    case JoinFaultKind::kStoreSilent:
      return rankIn(group, fault.process) >= 0 && (!hasTwoJobs() || fault.group == group);
    case JoinFaultKind::kAbsent:
    case JoinFaultKind::kWrongSize:
    case JoinFaultKind::kCannotStart:
      // A rank that fails in the first group comes to no other.
      return rankIn(group, fault.process) >= 0 && (fault.group == group || order == JoinOrder::kNested);
    case JoinFaultKind::kStop:
      return rankIn(group, fault.process) >= 0 && fault.duration > timeout / 4;
    case JoinFaultKind::kPartition:
      return rankIn(group, fault.process) >= 0 && rankIn(group, fault.other) >= 0 &&
             fault.duration > kHarmlessPartition;
    default:
      return rankIn(group, fault.process) >= 0;
  }
}

bool JoinSchedule::has(JoinFaultKind kind) const {
  return std::ranges::any_of(faults, [&](const JoinFault& fault) { return fault.kind == kind; });
}

bool JoinSchedule::mayFail(std::size_t group) const {
  return std::ranges::any_of(faults, [&](const JoinFault& fault) { return isLost(fault, group); });
}

namespace {

// The rest stays as drawn.
void leaveOut(JoinSchedule& schedule, const Without& without) {
  const auto isIn = [](const std::vector<int>& numbers) {
    return [&](const auto& each) { return std::ranges::find(numbers, each.number) != numbers.end(); };
  };
  for (int number = 0; JoinFault & fault : schedule.faults) {
    fault.number = number++;
  }
  std::erase_if(schedule.faults, isIn(without.faults));
  for (std::vector<Operation>& operations : schedule.operations) {
    std::erase_if(operations, isIn(without.operations));
  }
}

JoinSchedule draw(std::uint64_t seed, const Without& without, Draws draws, bool hasTwoJobs) {
  Random random(testing::mix64(seed ^ 0x6a6f696e73));
  JoinSchedule schedule{.seed = seed};
  schedule.numRanks = static_cast<int>(random.between(2, random.chance(30) ? kMostRanks : 5));
  schedule.isLazy = random.chance(25);
  const auto numHosts = schedule.isLazy ? 1 : random.between(1, schedule.numRanks);
  schedule.timeout = random.between(2 * kSecond, random.chance(50) ? 5 * kSecond : 30 * kSecond);
  const Time latest = random.chance(50) ? 10 * kMillisecond : schedule.timeout / 3;
  for (Rank process = 0; process < schedule.numRanks; ++process) {
    schedule.hosts.push_back(static_cast<std::int32_t>(random.between(0, numHosts - 1)));
    schedule.comesAt.push_back(random.chance(70) ? random.between(0, 2 * kMillisecond) : random.between(0, latest));
  }
  schedule.longestPause = random.chance(50) ? 0 : random.between(kMicrosecond, 300 * kMillisecond);
  schedule.longestStoreDelay = random.chance(80) ? 300 * kMicrosecond : random.between(kMillisecond, 60 * kMillisecond);
  Options& options = schedule.options;
  options.timeout = std::chrono::seconds(10);
  options.links = schedule.isLazy ? LinksWhen::kLazy : LinksWhen::kEager;
  options.ringBytes = 16384;
  schedule.network.capacities = internal::laneCapacities(options);
  schedule.network.lateness = schedule.isLazy ? Lateness::kAll : Lateness::kNone;
  schedule.network.spikePercent = random.chance(30) ? static_cast<int>(random.between(1, 30)) : 0;
  schedule.network.longestSpike = 20 * kMillisecond;
  hasTwoJobs ? drawJobs(random, schedule) : drawGroups(random, schedule);
  for (auto left = random.chance(30) ? random.between(1, 2) : 0; left > 0; --left) {
    schedule.faults.push_back(drawFault(random, schedule));
    schedule.faults.back().kind = JoinFaultKind::kStop;
    schedule.faults.back().duration = random.between(kMillisecond, schedule.timeout / 8);
  }
  for (auto left = random.chance(50) ? (random.chance(15) ? 2 : 1) : 0; left > 0; --left) {
    schedule.faults.push_back(drawFault(random, schedule));
  }
  for (auto left = draws == Draws::kManyFaults ? random.between(1, 2) : 0; left > 0; --left) {
    schedule.faults.push_back(drawFault(random, schedule));
  }
  drawWires(schedule);
  drawHandshakes(schedule);
  drawDeathInHandshake(schedule, draws);
  drawTransport(schedule);
  drawFetches(schedule);
  if (hasTwoJobs) {
    drawSubscription(schedule);
  }
  leaveOut(schedule, without);
  return schedule;
}

}  // namespace

JoinSchedule drawJoins(std::uint64_t seed, const Without& without, Draws draws) {
  return draw(seed, without, draws, false);
}

JoinSchedule drawTwoJobs(std::uint64_t seed, const Without& without, Draws draws) {
  return draw(seed, without, draws, true);
}

std::string describe(const JoinSchedule& schedule) {
  constexpr std::array kOrders = {"made one after the other", "made at once", "nested", "of two jobs"};
  std::string text = fmt::format(
      "joins of seed {}: {} processes on hosts {}, groups {}, {} rounds, timeout {}, links {}; answers of the store "
      "within {}\n",
      schedule.seed, schedule.numRanks, fmt::join(schedule.hosts, " "),
      kOrders[static_cast<std::size_t>(schedule.order)], schedule.numRounds, inMilliseconds(schedule.timeout),
      schedule.isWired  ? "over wires when first needed"
      : schedule.isLazy ? "when first needed"
                        : "at once",
      inMilliseconds(schedule.longestStoreDelay));
  for (std::size_t group = 0; group < schedule.groups.size(); ++group) {
    text += fmt::format("group {}: processes {} by rank\n", schedule.labelOf(group),
                        fmt::join(schedule.groups[group], " "));
  }
  for (Rank process = 0; process < schedule.numRanks; ++process) {
    text += fmt::format("process {} comes after {}\n", process,
                        inMilliseconds(schedule.comesAt[static_cast<std::size_t>(process)]));
  }
  for (const JoinFault& fault : schedule.faults) {
    text += describe(fault, schedule) + "\n";
  }
  if (schedule.isWired) {
    text += fmt::format("wires {}, {} % of the sends in pieces, {} % short{}\n",
                        schedule.options.tcpTls == TcpTls::kOff ? "are plain" : "encrypt", schedule.piecesPercent,
                        schedule.shortPercent,
                        schedule.recordsPerKey == 0 ? "" : fmt::format(", {} records per key", schedule.recordsPerKey));
    text += describeFetches(schedule);
  }
  text += schedule.hasTwoJobs() ? describeJobs(schedule) : "";
  text += schedule.longestHandshake > 0
              ? fmt::format("an answer takes up to {}\n", inMilliseconds(schedule.longestHandshake))
              : "";
  for (const JoinForeigner& each : schedule.foreigners) {
    text += fmt::format("a process without the job's token dials process {} after {}\n", each.process,
                        inMilliseconds(each.after));
  }
  return text;
}

}  // namespace shardwire::simulate
