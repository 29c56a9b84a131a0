// Every call of Communicator against its definition: random operations, types, shapes, strides, roots, splits and
// messages, several in flight at once, on several overlapping groups from several threads of each rank, over every data
// path; every byte is compared. The groups stay for all cases of one path, so kept plans, pooled runs and rings are
// used again and again.
//
// Only the calls keep the ranks in step: each rank derives a case from the case's seed alone.
// SHARDWIRE_ORACLE_CASES: how many cases (default 20000). SHARDWIRE_ORACLE_SEED: the first seed (to repeat a
// failure: the failing seed).
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <new>
#include <thread>

#include "shardwire/communicator.h"
#include "tests/support/collective_run.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/launched_ranks.h"
#include "tests/support/random.h"

namespace shardwire::testing {
namespace {

constexpr int kRanks = 5;
constexpr int kLanes = 2;  // threads of each rank, each with separate groups
// The members of each group of a lane, in the group's own order of ranks.
const std::vector<std::vector<Rank>> kMembers = {{0, 1, 2, 3, 4}, {3, 0, 4, 1}, {1, 2, 3}, {4, 2, 0},
                                                 {3, 4},          {1, 0},       {2}};

struct CollectivesPath {
  const char* name;
  bool areProcesses;
  OrdinaryPath ordinary;
  std::size_t inlineBytes;
  std::size_t ringBytes;
  std::uint64_t share;  // of a hundred cases
  std::uint64_t firstSeed;
  const char* transports = "";
  int numHosts = 0;  // as many hosts as SHARDWIRE_HOST_ID makes; 0: this one
};

// A group on one rank.
struct Member {
  std::unique_ptr<Communicator> group;
  Rank rank = -1;  // rank in the group; -1: not a member
};

class CollectiveOracle {
 public:
  CollectiveOracle(const CollectivesPath& path, std::uint64_t firstSeed, std::uint64_t numCases)
      : path_(path), firstSeed_(firstSeed), numCases_(numCases) {
    void* memory =
        ::mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SW_CHECK(memory != MAP_FAILED);
    failed_ = new (memory) std::atomic<bool>(false);
    options_.timeout = std::chrono::seconds(60);
    options_.ordinaryPath = path.ordinary;
    options_.inlineBytes = path.inlineBytes;
    options_.ringBytes = path.ringBytes;
    options_.transports = testedTransports().empty() ? path.transports : testedTransports();
    for (std::size_t i = 0; i < kLanes * kMembers.size(); ++i) {
      stores_.push_back(makeStore());
    }
    for (const auto& members : kMembers) {
      groupSizes_.push_back(static_cast<int>(members.size()));
    }
  }
  ~CollectiveOracle() { ::munmap(failed_, sizeof(*failed_)); }

  void run() {
    const auto body = [this](Rank rank) { rankMain(rank); };
    constexpr std::chrono::minutes kLimit(30);
    if (areRanksLaunched()) {
      return runLaunchedRank(kRanks, body, kLimit);
    }
    path_.areProcesses ? runRanksAsProcesses(kRanks, body, kLimit) : runRanksAsThreads(kRanks, body, kLimit);
  }

 private:
  void rankMain(Rank rank) {
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([this, rank, lane] { runLane(rank, lane); });
    }
    for (std::thread& lane : lanes) {
      lane.join();
    }
  }

  Options optionsOf(Rank rank) const {
    Options options = options_;
    if (path_.numHosts > 0) {
      options.hostId = fmt::format("host{}", rank % path_.numHosts);
    }
    return options;
  }

  void runLane(Rank rank, int lane) {
    std::vector<Member> groups(kMembers.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto& members = kMembers[g];
      const auto at = std::find(members.begin(), members.end(), rank);
      if (at == members.end()) {
        continue;
      }
      groups[g].rank = static_cast<Rank>(at - members.begin());
      auto group = Communicator::create(*stores_[static_cast<std::size_t>(lane) * groups.size() + g], groups[g].rank,
                                        groupSizes_[g], optionsOf(rank), fmt::format("oracle{}-{}", lane, g));
      if (!group.isOk()) {
        return fail(rank, 0, "no group: " + group.status().message(), {});
      }
      groups[g].group = std::move(*group);
    }
    if (!runCases(rank, lane, groups)) {
      return;
    }
    for (Member& member : groups) {  // no rank leaves while others still need the rank
      if (member.group != nullptr) {
        auto last = member.group->barrier();
        if (!last.isOk() || !(*last)->wait().isOk()) {
          return fail(rank, 0, "the last barrier failed", {});
        }
      }
    }
  }

  // A batch in flight: each rank waits for the batch at once or only after it has issued a later batch, as the rank
  // likes.
  struct Flight {
    std::uint64_t seed = 0;
    std::vector<RandomCall> batch;
    std::deque<CollectiveRun> runs;
    std::vector<WorkPtr> works;
  };

  bool issue(Rank rank, Flight& flight, std::vector<Member>& groups, Random& random) {
    flight.batch = makeRandomBatch(flight.seed, groupSizes_, {path_.inlineBytes, path_.ringBytes, 1});
    std::vector<const RandomCall*> calls;
    for (const RandomCall& call : flight.batch) {
      if (groups[call.group].rank >= 0) {
        flight.runs.emplace_back(call, groups[call.group].rank);
        calls.push_back(&call);
      }
    }
    for (const std::size_t i : randomOrder(calls, random)) {
      pause(random);
      if (std::string wrong = flight.runs[i].issue(*groups[calls[i]->group].group); !wrong.empty()) {
        fail(rank, flight.seed, wrong, flight.batch);
        return false;
      }
      for (WorkPtr& work : flight.runs[i].takeWorks()) {
        flight.works.push_back(std::move(work));
      }
    }
    return true;
  }

  bool finish(Rank rank, Flight& flight, Random& random) {
    random.shuffle(flight.works);
    for (WorkPtr& work : flight.works) {
      pause(random);
      if (const Status status = waitSomehow(*work, random); !status.isOk() || !work->isDone()) {
        fail(rank, flight.seed, "wait: " + status.message(), flight.batch);
        return false;
      }
    }
    flight.works.clear();
    for (std::size_t i = 0; i < flight.runs.size(); ++i) {
      if (const std::string wrong = flight.runs[i].check(); !wrong.empty()) {
        fail(rank, flight.seed, fmt::format("call {} of the rank: {}", i, wrong), flight.batch);
        return false;
      }
    }
    return true;
  }

  bool runCases(Rank rank, int lane, std::vector<Member>& groups) {
    std::deque<Flight> flights;
    Random random(mix64(firstSeed_) * 31 + static_cast<std::uint64_t>(rank * kLanes + lane));
    for (auto i = static_cast<std::uint64_t>(lane); i < numCases_ || !flights.empty(); i += kLanes) {
      if (*failed_) {
        return false;
      }
      if (i < numCases_) {
        flights.emplace_back();
        flights.back().seed = firstSeed_ + i;
        if (!issue(rank, flights.back(), groups, random)) {
          return false;
        }
      }
      const std::size_t mayStay = i >= numCases_ || random.chance(60) ? 0 : 2;
      while (flights.size() > mayStay) {
        if (!finish(rank, flights.front(), random)) {
          return false;
        }
        flights.pop_front();
      }
    }
    return true;
  }

  // A random order in which the calls of each group keep their order: calls of different groups need not come in the
  // same order on all ranks.
  static std::vector<std::size_t> randomOrder(const std::vector<const RandomCall*>& calls, Random& random) {
    std::vector<std::size_t> groups;
    for (const RandomCall* call : calls) {
      groups.push_back(call->group);
    }
    random.shuffle(groups);
    std::vector<std::size_t> order;
    std::vector<bool> taken(calls.size());
    for (const std::size_t group : groups) {
      std::size_t next = 0;
      while (taken[next] || calls[next]->group != group) {
        ++next;
      }
      taken[next] = true;
      order.push_back(next);
    }
    return order;
  }

  // Ranks and lanes drift apart.
  static void pause(Random& random) {
    if (const auto draw = random.between(0, 199); draw == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random.between(20, 400)));
    } else if (draw < 10) {
      std::this_thread::yield();
    }
  }

  static Status waitSomehow(Work& work, Random& random) {
    const auto draw = random.between(0, 19);
    if (draw == 0) {  // only the progress thread drives the operation
      while (!work.isDone()) {
        std::this_thread::yield();
      }
      return work.status();
    }
    if (draw == 1) {
      while (true) {
        const Status status = work.wait(deadlineAfter(std::chrono::microseconds(20)));
        if (status.isOk() || work.isDone()) {
          return work.status();
        }
      }
    }
    if (draw == 2) {
      std::atomic<int> called{0};
      work.onDone([&](const Status& status) { called = status.isOk() ? 1 : 2; });
      while (called == 0) {
        std::this_thread::yield();
      }
      return called == 1 ? Status::ok() : work.status();
    }
    return work.wait();
  }

  // Only the first failure is reported: a rank that stops makes the other ranks fail.
  void fail(Rank rank, std::uint64_t seed, const std::string& what, const std::vector<RandomCall>& batch) {
    if (failed_->exchange(true)) {
      return;
    }
    std::string text;
    for (const RandomCall& call : batch) {
      text += "  " + describe(call) + "\n";
    }
    ADD_FAILURE() << "seed " << seed << " on path " << path_.name << " (from seed " << firstSeed_ << "), rank " << rank
                  << ": " << what << "\n"
                  << text;
  }

  const CollectivesPath path_;
  const std::uint64_t firstSeed_;
  const std::uint64_t numCases_;
  Options options_;
  std::vector<int> groupSizes_;
  std::vector<std::unique_ptr<Store>> stores_;
  std::atomic<bool>* failed_;  // seen by forked ranks
};

class CollectivesOracleTest : public ::testing::TestWithParam<CollectivesPath> {};

TEST_P(CollectivesOracleTest, AgreesWithTheDefinitions) {
  const CollectivesPath& path = GetParam();
  if (path.areProcesses && path.ordinary == OrdinaryPath::kCrossMemory && !testing::hasCrossMemoryReads()) {
    GTEST_SKIP() << "this kernel has no process_vm_readv";
  }
  const std::uint64_t cases =
      std::max<std::uint64_t>(1, numberFromEnvironment("SHARDWIRE_ORACLE_CASES", 20000) * path.share / 100);
  const std::uint64_t seed = numberFromEnvironment("SHARDWIRE_ORACLE_SEED", path.firstSeed);
  fmt::print("{} cases from seed {}\n", cases, seed);
  CollectiveOracle(path, seed, cases).run();
}

// Rings of 4 KiB: most tensors travel in many segments, even tensors short enough for one frame elsewhere.
INSTANTIATE_TEST_SUITE_P(
    Paths, CollectivesOracleTest,
    ::testing::Values(
        CollectivesPath{"as_is", false, OrdinaryPath::kAuto, 8 << 10, 1 << 20, 30, 1000000},
        CollectivesPath{"direct", false, OrdinaryPath::kAuto, 0, 1 << 20, 15, 2000000},
        CollectivesPath{"copied", false, OrdinaryPath::kCrossMemory, 0, 1 << 20, 15, 3000000},
        CollectivesPath{"staged", false, OrdinaryPath::kStaged, 0, 4 << 10, 14, 4000000},
        CollectivesPath{"staged_whole", false, OrdinaryPath::kStaged, 8 << 10, 4 << 10, 6, 9000000},
        CollectivesPath{"as_is_processes", true, OrdinaryPath::kAuto, 8 << 10, 1 << 20, 5, 5000000},
        CollectivesPath{"direct_processes", true, OrdinaryPath::kAuto, 0, 1 << 20, 5, 6000000},
        CollectivesPath{"copied_processes", true, OrdinaryPath::kCrossMemory, 0, 1 << 20, 5, 7000000},
        CollectivesPath{"staged_processes", true, OrdinaryPath::kStaged, 0, 4 << 10, 5, 8000000},
        CollectivesPath{"tcp_fetched", false, OrdinaryPath::kCrossMemory, 0, 1 << 20, 4, 10000000, "tcp"},
        CollectivesPath{"tcp_staged", false, OrdinaryPath::kStaged, 8 << 10, 4 << 10, 4, 11000000, "tcp"},
        CollectivesPath{"tcp_processes", true, OrdinaryPath::kAuto, 8 << 10, 1 << 20, 4, 12000000, "tcp"},
        // Two hosts: shared memory inside, tcp between.
        CollectivesPath{"mixed_fetched", false, OrdinaryPath::kCrossMemory, 0, 1 << 20, 4, 13000000, "shm,tcp", 2},
        CollectivesPath{"mixed_staged", true, OrdinaryPath::kStaged, 8 << 10, 4 << 10, 4, 14000000, "shm,tcp", 2}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shardwire::testing
