#include "tests/simulate/program.h"

#include <algorithm>
#include <iterator>

namespace shardwire::simulate {

void Program::addRank(std::size_t group, Network& network) {
  const Rank rank = schedule_.rankIn(group, process_.rank());
  ranks_.push_back(std::make_unique<RankProgram>(schedule_, group, rank, network, process_));
  process_.setIsWaiting(group, [one = ranks_.back().get()] { return one->isWaiting(); });
}

void Program::begin() {
  Ranks all;
  std::ranges::transform(ranks_, std::back_inserter(all), [](const auto& each) { return each.get(); });
  const std::uint64_t seed = testing::mix64(schedule_.seed * 64 + static_cast<std::uint64_t>(process_.rank()));
  if (!schedule_.hasThreads && !all.empty()) {
    process_.addThread([this, all, seed] { run(all, seed); });
  }
  for (std::size_t i = 0; schedule_.hasThreads && i < all.size(); ++i) {
    process_.addThread([this, one = all[i], seed = seed + i] { run({one}, seed); });
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
    callAll(ranks, schedule_.operations, random);
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
  RankProgram* last = schedule_.makesAnew ? ranks.front() : nullptr;
  while (last != nullptr && (last = goOnAfter(*last, random)) != nullptr) {
    last->begin();
    if (schedule_.longestIdle > 0 && !isReset_) {
      process_.computeFor(Random(seed + last->group()).between(0, schedule_.longestIdle));
    }
    callAll({last}, survivors_.operationsOf(last->group()), random);
    if (!last->report().isOver) {
      last->waitForAll();
      last->end();
    }
  }
}

RankProgram* Program::goOnAfter(const RankProgram& rank, Random& random) {
  const std::size_t group = rank.group();
  survivors_.arrive(group, process_.rank(), !rank.report().failure.isOk());
  for (Time pause = kMillisecond; !isReset_ && survivors_.isOpen(group); pause = std::min(2 * pause, kSecond)) {
    process_.computeFor(random.between(pause / 2, pause));
  }
  const int next = isReset_ ? -1 : survivors_.next(group);
  return next < 0 ? nullptr : rankIn(static_cast<std::size_t>(next));
}

void Program::callAll(const Ranks& ranks, const std::vector<Operation>& operations, Random& random) {
  for (const Operation& operation : operations) {
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
