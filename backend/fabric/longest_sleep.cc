#include "backend/fabric/longest_sleep.h"

#include <atomic>
#include <chrono>

namespace shardwire::internal {
namespace {

std::atomic<Duration> longest{std::chrono::milliseconds(100)};

}  // namespace

Duration longestSleep() {
  return longest.load(std::memory_order_relaxed);
}

void setLongestSleep(Duration wanted) {
  longest.store(wanted, std::memory_order_relaxed);
}

}  // namespace shardwire::internal
