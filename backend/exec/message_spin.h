// Whether starting a message polls before the call returns. If a program waits for its message at once, polling saves
// arming the bell: with the bell armed the peer's next frame costs the peer a system call. A program that posts many
// messages ahead would only lose the time. So the latest messages decide. Any thread.
#pragma once

#include <algorithm>
#include <atomic>

#include "backend/exec/run.h"

namespace shardwire::internal {

class MessageSpin {
 public:
  // How long the start of the next message polls at most.
  Duration next() {
    const bool polls =
        score_.load(std::memory_order_relaxed) > 0 || calls_.fetch_add(1, std::memory_order_relaxed) % kTrialEvery == 0;
    return polls ? kShortSpin : Duration::zero();
  }
  // The message whose start polled for `limit` at most has ended by then, or not.
  void note(Duration limit, bool hasEnded) {
    if (limit > Duration::zero()) {
      const int score = score_.load(std::memory_order_relaxed) + (hasEnded ? kGain : -1);
      score_.store(std::clamp(score, 0, kMostScore), std::memory_order_relaxed);
    }
  }

 private:
  static constexpr int kGain = 2;
  static constexpr int kMostScore = 8;
  static constexpr unsigned kTrialEvery = 32;
  // relaxed: only guides the choice; a lost update changes nothing but speed.
  std::atomic<int> score_{kGain};
  std::atomic<unsigned> calls_{0};
};

}  // namespace shardwire::internal
