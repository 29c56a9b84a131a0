// The longest sleep at a doorbell without a ring. Bounds the loss when a peer dies between taking the armed flag and
// ringing. Any thread.
#pragma once

#include <atomic>
#include <chrono>

#include "shardwire/types.h"

namespace shardwire::internal {

inline std::atomic<Duration> longestSleepNow{std::chrono::milliseconds(100)};

inline Duration longestSleep() {
  return longestSleepNow.load(std::memory_order_relaxed);
}

// For tests, before they make doorbells: a lost wake-up must not look like a late wake-up on a busy machine.
inline void setLongestSleep(Duration wanted) {
  longestSleepNow.store(wanted, std::memory_order_relaxed);
}

}  // namespace shardwire::internal
