// A barrier of processes that share memory. Neutral ground for benches: ranks of shardwire, gloo and each MPI start an
// iteration by the same barrier.
#pragma once

#include <sched.h>

#include <atomic>

namespace shardwire::bench {

// All members zero is a valid start. Lives in shared memory.
class SharedBarrier {
 public:
  void arrive(int numRanks) {
    const unsigned round = round_.load(std::memory_order_relaxed);
    if (numArrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == numRanks) {
      numArrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > kSpins) {
        ::sched_yield();
      }
    }
  }

 private:
  static constexpr int kSpins = 20000;  // before a waiting rank yields its core
  std::atomic<int> numArrived_{0};
  std::atomic<unsigned> round_{0};  // released by the last to arrive
};

// Puts this rank on a core of its own, if there are enough.
inline void pinRank(int rank) {
  cpu_set_t here, one;
  if (sched_getaffinity(0, sizeof(here), &here) != 0) {
    return;
  }
  int left = rank % CPU_COUNT(&here);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &here) && left-- == 0) {
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      (void)sched_setaffinity(0, sizeof(one), &one);
      return;
    }
  }
}

}  // namespace shardwire::bench
