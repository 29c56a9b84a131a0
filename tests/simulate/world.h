// The events of a simulation in the order of simulated time, the random numbers, and the trace: who did what when.
// One thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/types.h"
#include "tests/simulate/clock.h"
#include "tests/simulate/recording.h"
#include "tests/support/random.h"

namespace shardwire::simulate {

using testing::Random;

class World {
 public:
  // `isTraced`: keeps the text of every event.
  World(std::uint64_t seed, bool isTraced);

  // The time of the event that runs now.
  Time now() const { return now_; }
  // Since the begin of this simulation.
  Time elapsed(Time time) const { return time == kNever ? kNever : time - begin_; }
  Random& random() { return random_; }
  // Calls `action` at `when`, or now if `when` is over. Events of equal times run in the order of these calls.
  void at(Time when, std::function<void()> action);
  // Runs events until isOver() or `until`. False: isOver() was not reached.
  template <typename IsOver>
  bool run(Time until, IsOver isOver) {
    while (!isOver()) {
      if (events_.empty() || events_.top().when > until) {
        return false;
      }
      runNext();
    }
    return true;
  }

  // A line of the trace, at `when`; row -1: nobody's.
  template <typename... Args>
  void note(Time when, Rank rank, fmt::format_string<Args...> format, Args&&... args) {
    if (isTraced_) {
      add(when, rank, fmt::format(format, std::forward<Args>(args)...));
    }
  }
  const std::string& trace() const { return trace_; }
  // Null unless traced.
  Recording* recording() { return isTraced_ ? &recording_ : nullptr; }
  // The rows of the trace: "rank", or "process" where processes have other ranks in each group.
  void setRowName(const char* name) { rowName_ = name; }
  const char* rowName() const { return rowName_; }
  bool isTraced() const { return isTraced_; }
  std::uint64_t numEvents() const { return numEvents_; }

 private:
  struct Event {
    Time when;
    std::uint64_t number;
    std::function<void()> action;
    bool operator<(const Event& other) const {  // the top of the queue is the greatest
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };
  void runNext();
  void add(Time when, Rank rank, const std::string& text);

  Random random_;
  const bool isTraced_;
  const char* rowName_ = "rank";
  const Time begin_;
  Time now_;
  std::priority_queue<Event> events_;
  std::uint64_t numEvents_ = 0;
  std::string trace_;
  Recording recording_;
};

}  // namespace shardwire::simulate
