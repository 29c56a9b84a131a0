#include "tests/simulate/survivors.h"

#include <algorithm>
#include <iterator>

#include "tests/simulate/faults.h"

namespace shardwire::simulate {

void Survivors::arrive(std::size_t group, Rank process, bool hasFailed) {
  arrivals_.resize(std::max(arrivals_.size(), group + 1));
  arrivals_[group].processes.insert(process);
  arrivals_[group].hasFailed |= hasFailed;
}

bool Survivors::isOpen(std::size_t group) const {
  const Arrivals& arrivals = arrivals_[group];
  return !arrivals.isDecided && std::ranges::any_of(job_.schedule.groups[group], [&](Rank member) {
    return !job_.processes[static_cast<std::size_t>(member)]->isDead() && !arrivals.processes.contains(member);
  });
}

int Survivors::next(std::size_t group) {
  Arrivals& arrivals = arrivals_[group];
  if (!arrivals.isDecided) {
    arrivals.isDecided = true;
    arrivals.next = makeNext(group);
  }
  return arrivals.next;
}

int Survivors::makeNext(std::size_t group) {
  Members living;
  std::ranges::copy_if(job_.schedule.groups[group], std::back_inserter(living),
                       [&](Rank member) { return !job_.processes[static_cast<std::size_t>(member)]->isDead(); });
  const bool isWhole = living.size() == job_.schedule.groups[group].size() && !arrivals_[group].hasFailed;
  const std::size_t made = job_.schedule.groups.size();
  if (isWhole || living.size() < 2 || made > kMostMadeAnew) {
    return -1;
  }
  job_.schedule.groups.push_back(living);
  operations_.push_back(drawOperationsAnew(job_.schedule, made));
  job_.addNetwork(made);
  for (const Rank member : living) {
    job_.programs[static_cast<std::size_t>(member)]->addRank(made, *job_.networks[made]);
  }
  return static_cast<int>(made);
}

}  // namespace shardwire::simulate
