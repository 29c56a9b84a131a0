// Ranks of a bench: forked processes that share a barrier and their timings. The parent is no rank, so the parent can
// fork again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/bench_options.h"

namespace shardwire::bench {

class BenchRanks {
 public:
  // Shared memory for up to numRanks ranks, to be made before forking.
  explicit BenchRanks(int numRanks);
  ~BenchRanks();
  BenchRanks(const BenchRanks&) = delete;
  BenchRanks& operator=(const BenchRanks&) = delete;

  // Forks the ranks, runs `body` in each, and waits for them. Returns the text of rank 0's body; nullopt when a rank
  // failed.
  std::optional<std::string> run(bool pin, const std::function<std::string(int rank)>& body);

  int rank() const { return rank_; }
  int size() const { return numRanks_; }
  void barrier();

  // Times `timed` on all ranks at once: per iteration prepare, barrier, timed. Microseconds of the slowest rank, one
  // per iteration after the warm-up; on every rank.
  std::vector<double> measure(int warmup, int iterations, const std::function<void(int iteration)>& prepare,
                              const std::function<void()>& timed);

 private:
  struct Shared;
  int numRanks_;
  int rank_ = 0;
  Shared* shared_;
};

// Prints the message and ends this rank with an error: a bench has no caller for errors.
[[noreturn]] void fail(const std::string& message);

}  // namespace shardwire::bench
