#include "tests/simulate/program.h"

#include <algorithm>

namespace shardwire::simulate {

Program::Program(const Schedule& schedule, Process& process, const std::vector<std::unique_ptr<Network>>& networks)
    : schedule_(schedule), process_(process) {
  Ranks all;
  for (std::size_t group = 0; group < networks.size(); ++group) {
    if (const Rank rank = schedule.rankIn(group, process.rank()); rank >= 0) {
      ranks_.push_back(std::make_unique<RankProgram>(schedule, group, rank, *networks[group], process));
      all.push_back(ranks_.back().get());
      process.setIsWaiting(group, [one = all.back()] { return one->isWaiting(); });
    }
  }
  const std::uint64_t seed = testing::mix64(schedule.seed * 64 + static_cast<std::uint64_t>(process.rank()));
  if (!schedule.hasThreads && !all.empty()) {
    process.addThread([this, all, seed] { run(all, seed); });
  }
  for (std::size_t i = 0; schedule.hasThreads && i < all.size(); ++i) {
    process.addThread([this, one = all[i], seed = seed + i] { run({one}, seed); });
  }
}

RankProgram* Program::rankIn(std::size_t group) const {
  const auto found = std::ranges::find(ranks_, group, [](const auto& each) { return each->group(); });
  return found == ranks_.end() ? nullptr : found->get();
}

void Program::run(const Ranks& ranks, std::uint64_t seed) {
  Random random(seed);
  for (RankProgram* const rank : ranks) {
    rank->begin();
  }
  if (!isReset_) {
    callAll(ranks, random);
  }
  for (RankProgram* const rank : ranks) {
    if (!rank->report().isOver) {
      rank->waitForAll();
    }
  }
  if (hasStopped_ && schedule_.longestStay > 0) {
    process_.computeFor(random.between(0, schedule_.longestStay));
  }
  for (RankProgram* const rank : ranks) {
    if (!rank->report().isOver) {
      rank->end();
    }
  }
}

void Program::callAll(const Ranks& ranks, Random& random) {
  for (const Operation& operation : schedule_.operations) {
    const auto found = std::ranges::find(ranks, operation.group, [](const auto& each) { return each->group(); });
    if (found == ranks.end() || (*found)->report().isOver) {
      continue;
    }
    if (schedule_.longestPause > 0) {
      process_.computeFor(random.between(0, schedule_.longestPause));
    }
    if (hasStopped_) {
      return;
    }
    if (RankProgram& rank = **found; !rank.call(operation)) {
      hasStopped_ = schedule_.afterFailure == AfterFailure::kStops;
      rank.waitForAll();
      if (!hasStopped_) {
        rank.end();
      }
    }
  }
}

void Program::reset() {
  isReset_ = true;
  std::ranges::for_each(ranks_, [](const auto& rank) { rank->reset(); });
}

}  // namespace shardwire::simulate
