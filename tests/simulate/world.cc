#include "tests/simulate/world.h"

#include <algorithm>

#include "backend/base/patience.h"
#include "backend/exec/process_failures.h"

namespace shardwire::simulate {
namespace {

// Between two simulations of one process: longer than the product remembers failures of the process.
constexpr Time kBetween = 3600 * kSecond;
Time lastEnd = 0;

}  // namespace

World::World(std::uint64_t seed, bool isTraced)
    : random_(testing::mix64(seed) ^ 0x77616c64), isTraced_(isTraced), begin_(lastEnd + kBetween), now_(begin_) {
  internal::forgetProcessFailures();
  internal::forgetYields();
}

void World::at(Time when, std::function<void()> action) {
  events_.push({std::max(when, now_), numEvents_++, std::move(action)});
}

void World::runNext() {
  // The queue's top is const only to keep the order, which a moved-from action does not change.
  const auto action = std::move(const_cast<Event&>(events_.top()).action);
  now_ = events_.top().when;
  lastEnd = std::max(lastEnd, now_);
  events_.pop();
  action();
}

void World::add(Time when, Rank rank, const std::string& text) {
  recording_.lines.push_back({elapsed(when), rank, text});
  trace_ += rank < 0 ? fmt::format("{:>18}          {}\n", inMilliseconds(elapsed(when)), text)
                     : fmt::format("{:>18}  {} {}  {}\n", inMilliseconds(elapsed(when)), rowName_, rank, text);
}

}  // namespace shardwire::simulate
