// Two jobs in one simulation of joins: publishers and subscribers share hosts, and the network with its faults. The
// ranks of each job make a group, over a store of the job. At once all ranks of both jobs make a third group over a
// third store, and the subscribers fetch weights there (join_subscription.h). drawJobs() draws the two jobs, and
// drawSubscription() draws what they do. Three of five seeds have a fault of a whole job or of a host: then the other
// job must go on, and only its third group may fail.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "tests/simulate/join_schedule.h"

namespace shardwire::simulate {
namespace {

constexpr std::uint64_t kJobsSalt = 0x6a6f6273;
constexpr int kMostVersions = 8;
constexpr int kMostFetches = 6;

// Nothing passes between the two jobs.
void cutOff(Random& random, JoinSchedule& schedule, Time after) {
  const Time duration = random.chance(30)   ? random.between(kMillisecond, kHarmlessPartition)
                        : random.chance(50) ? random.between(3 * kSecond, 20 * kSecond)
                                            : kForEver;
  for (const Rank publisher : schedule.groups[0]) {
    for (const Rank subscriber : schedule.groups[1]) {
      schedule.faults.push_back({.kind = JoinFaultKind::kPartition,
                                 .process = publisher,
                                 .after = after,
                                 .duration = duration,
                                 .other = subscriber});
    }
  }
}

void drawLoss(Random& random, JoinSchedule& schedule) {
  constexpr std::array kKinds = {JoinFaultKind::kKill, JoinFaultKind::kKill, JoinFaultKind::kHostDies,
                                 JoinFaultKind::kStop, JoinFaultKind::kPartition};
  const JoinFaultKind kind = kKinds[static_cast<std::size_t>(random.between(0, std::ssize(kKinds) - 1))];
  const Time comes = *std::ranges::max_element(schedule.comesAt);
  const Time after = random.between(0, comes + (random.chance(50) ? 20 * kMillisecond : 4 * kSecond));
  schedule.faults.clear();
  if (kind == JoinFaultKind::kPartition && schedule.isWired) {
    return cutOff(random, schedule, after);
  }
  Members lost = schedule.groups[static_cast<std::size_t>(random.between(0, 1))];
  if (kind == JoinFaultKind::kHostDies) {  // with processes of both jobs, perhaps
    const std::int32_t host = schedule.hosts[static_cast<std::size_t>(lost.front())];
    lost.resize(static_cast<std::size_t>(schedule.numRanks));
    std::iota(lost.begin(), lost.end(), 0);
    std::erase_if(lost, [&](Rank process) { return schedule.hosts[static_cast<std::size_t>(process)] != host; });
  }
  const Time duration =
      random.chance(50) ? random.between(2, 3) * schedule.timeout : random.between(kMillisecond, schedule.timeout / 8);
  const Time spread = random.chance(50) ? 0 : random.between(0, 50 * kMillisecond);  // as a launcher ends a job
  for (const Rank process : lost) {
    schedule.faults.push_back({.kind = kind == JoinFaultKind::kPartition ? JoinFaultKind::kKill : kind,
                               .process = process,
                               .after = after + random.between(0, spread),
                               .duration = kind == JoinFaultKind::kStop ? duration : 0});
  }
}

}  // namespace

void drawJobs(Random& random, JoinSchedule& schedule) {
  schedule.order = JoinOrder::kTwoJobs;
  Members all(static_cast<std::size_t>(schedule.numRanks));
  std::iota(all.begin(), all.end(), 0);
  random.shuffle(all);
  const auto cut = all.begin() + random.between(1, schedule.numRanks - 1);
  schedule.groups = {Members(all.begin(), cut), Members(cut, all.end()), all};
}

void drawSubscription(JoinSchedule& schedule) {
  Random random(testing::mix64(schedule.seed ^ kJobsSalt));
  schedule.numRounds = random.chance(30) ? 2 : 1;
  schedule.numSteps = static_cast<int>(random.between(1, kMostVersions));
  schedule.numFetches = static_cast<int>(random.between(1, kMostFetches));
  schedule.numWeights = random.chance(30) ? random.between(500, 8000) : random.between(10, 100);
  schedule.isReplicated = random.chance(50);
  // Not shorter than idle ranks: then the failure of the third group is no reason in the other groups.
  schedule.options.grace = random.chance(70) ? std::chrono::seconds(5) : std::chrono::milliseconds(500);
  schedule.longestIdle = std::max(schedule.longestIdle, random.chance(50) ? 0 : random.between(0, 500 * kMillisecond));
  for (std::size_t group = 0; group < schedule.operations.size(); ++group) {
    if (schedule.isCommon(group) || schedule.groups[group].size() == 1) {  // some operations need a peer
      schedule.operations[group].clear();
    }
  }
  if (random.chance(60)) {
    drawLoss(random, schedule);
  }
}

std::string describeJobs(const JoinSchedule& schedule) {
  return fmt::format("g0 publishes in {} steps, g1 subscribes, and g2 fetches {} times {} weights, each rank {}\n",
                     schedule.numSteps, schedule.numFetches, schedule.numWeights,
                     schedule.isReplicated ? "all of them" : "a part");
}

}  // namespace shardwire::simulate
