#include "backend/base/patience.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "backend/base/relax.h"

namespace shardwire::internal {
namespace {

// Between two looks at the clock, where no yield separates polls: about a microsecond.
constexpr unsigned kPollsPerLook = 16;
// Where a yield separates any two polls: a look costs a tenth of a yield.
constexpr unsigned kYieldsPerLook = 4;
// A yield between two waiting ranks takes 1 us. A yield that let another program run for a time slice takes
// milliseconds.
constexpr Duration kLongYield = std::chrono::microseconds(300);
// After a long yield no yield follows for this many times the yield's duration.
constexpr int kRestFactor = 16;
constexpr Duration kLongestRest = std::chrono::seconds(2);

// For the whole process. Relaxed: the values are advice and guard no data. A child of fork() continues with the
// parent's values.
std::atomic<Clock::rep> restsUntil{Clock::time_point::min().time_since_epoch().count()};
std::atomic<Duration::rep> latestRest{0};
std::atomic<unsigned> numYields{0};  // over all waits: most are shorter than kYieldsPerLook

}  // namespace

bool mayYield(Clock::time_point now) {
  return now.time_since_epoch().count() >= restsUntil.load(std::memory_order_relaxed);
}

Clock::time_point yieldCore(Clock::time_point now) {
  std::this_thread::yield();
  const auto after = Clock::now();
  const Duration took = after - now;
  const Duration before(latestRest.load(std::memory_order_relaxed));
  if (took > kLongYield) {
    const Duration rest = std::min(std::max(took * kRestFactor, before * 2), kLongestRest);
    latestRest.store(rest.count(), std::memory_order_relaxed);
    restsUntil.store((after + rest).time_since_epoch().count(), std::memory_order_relaxed);
  } else if (before > Duration::zero()) {
    latestRest.store(before.count() / 2, std::memory_order_relaxed);
  }
  return after;
}

void forgetYields() {
  restsUntil.store(Clock::time_point::min().time_since_epoch().count());
  latestRest.store(0);
  numYields.store(0);
}

Patience::Patience(Duration spin, Duration yieldAfter)
    : spin_(spin), yieldAfter_(yieldAfter), now_(Clock::now()), started_(now_) {}

bool Patience::spins() {
  relax();
  if (hasSlept_) {
    now_ = Clock::now();
    return false;
  }
  const bool yieldsAlways = yieldAfter_ == Duration::zero();
  if (!isTimeToLook(yieldsAlways)) {
    if (yieldsAlways) {
      std::this_thread::yield();
    }
    return true;
  }
  now_ = Clock::now();
  if (!hasLooked_) {
    hasLooked_ = true;
    started_ = now_;
  }
  if (now_ - started_ < yieldAfter_) {
    return now_ - started_ < spin_;
  }
  if (now_ - started_ >= spin_ || !mayYield(now_)) {
    return false;
  }
  now_ = yieldCore(now_);
  return true;
}

bool Patience::isTimeToLook(bool yieldsAlways) {
  if (!yieldsAlways) {
    return ++numPolls_ % kPollsPerLook == 0;
  }
  const unsigned number =
      numYields.load(std::memory_order_relaxed) + 1;  // two threads may use the same count without harm
  numYields.store(number, std::memory_order_relaxed);
  return number % kYieldsPerLook == 0 || !mayYield(now_);
}

void Patience::moved() {
  numPolls_ = 0;
  hasLooked_ = false;
  hasSlept_ = false;
  if (++numMoves_ % kPollsPerLook == 0) {
    now_ = Clock::now();
  }
}

}  // namespace shardwire::internal
