#include "bench/bench_ranks.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "bench/shared_barrier.h"

namespace shardwire::bench {

namespace {

constexpr int kMostRanks = 64;
constexpr std::size_t kTextBytes = std::size_t{4} << 20;

}  // namespace

struct BenchRanks::Shared {
  SharedBarrier barrier;
  std::array<double, kMostRanks> microseconds{};
  std::size_t textBytes = 0;  // length of the text returned by rank 0's body; read after rank 0 has ended
  std::array<char, kTextBytes> text;
};

BenchRanks::BenchRanks(int numRanks) : numRanks_(numRanks) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || numRanks > kMostRanks) {
    fail("no shared memory for the ranks");
  }
  shared_ = new (memory) Shared;
}

BenchRanks::~BenchRanks() {
  ::munmap(shared_, sizeof(Shared));
}

std::optional<std::string> BenchRanks::run(bool pin, const std::function<std::string(int rank)>& body) {
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < numRanks_; ++rank) {
    const pid_t child = ::fork();
    if (child < 0) {
      fail("fork failed");
    }
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      rank_ = rank;
      if (pin) {
        pinRank(rank);
      }
      const std::string text = body(rank);
      if (rank == 0) {
        if (text.size() > kTextBytes) {
          fail("the report is too long");
        }
        shared_->textBytes = text.size();
        std::copy(text.begin(), text.end(), shared_->text.begin());
      }
      std::fflush(stdout);
      ::_exit(0);
    }
    children.push_back(child);
  }
  bool areAllWell = true;
  for (std::size_t numLeft = children.size(); numLeft > 0; --numLeft) {
    int state = 0;
    ::wait(&state);
    if (areAllWell && !(WIFEXITED(state) && WEXITSTATUS(state) == 0)) {
      areAllWell = false;
      for (const pid_t child : children) {
        ::kill(child, SIGKILL);  // the other ranks would wait for the failed rank
      }
    }
  }
  return areAllWell ? std::optional(std::string(shared_->text.data(), shared_->textBytes)) : std::nullopt;
}

void BenchRanks::barrier() {
  shared_->barrier.arrive(numRanks_);
}

std::vector<double> BenchRanks::measure(int warmup, int iterations, const std::function<void(int iteration)>& prepare,
                                        const std::function<void()>& timed) {
  std::vector<double> slowest;
  for (int iteration = -warmup; iteration < iterations; ++iteration) {
    prepare(iteration);
    barrier();
    const auto start = std::chrono::steady_clock::now();
    timed();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    shared_->microseconds[static_cast<std::size_t>(rank_)] = took.count();
    barrier();
    if (iteration >= 0) {
      slowest.push_back(*std::max_element(shared_->microseconds.begin(), shared_->microseconds.begin() + numRanks_));
    }
    barrier();  // no rank may overwrite a time that another rank still reads
  }
  return slowest;
}

void fail(const std::string& message) {
  fmt::print(stderr, "bench: {}\n", message);
  std::exit(1);
}

}  // namespace shardwire::bench
