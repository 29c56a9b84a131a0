// Every algorithm of every collective, forced, for all group sizes up to 9, against plain loops; and operations that
// overlap in time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "ops/collectives/select.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/backend/thread_group.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::runRanksAsThreads;

using Values = std::vector<std::int64_t>;

Values sumOf(int n, std::size_t size) {
  Values sum(size);
  for (Rank rank = 0; rank < n; ++rank) {
    const Values one = patternOf(rank, size);
    std::transform(sum.begin(), sum.end(), one.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

void withAlgorithm(int n, const std::string& algorithms, const std::function<void(Communicator&)>& body,
                   OrdinaryPath path = OrdinaryPath::kAuto, std::size_t ringBytes = Options{}.ringBytes) {
  Options options = *Options::fromEnvironment();
  options.timeout = std::chrono::seconds(20);
  options.algorithms = algorithms;
  options.ordinaryPath = path;
  options.ringBytes = ringBytes;
  MemoryStore store;
  runRanksAsThreads(n, [&](Rank rank) {
    auto group = Communicator::create(store, rank, n, options, "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    body(**group);
    expectOk((*group)->barrier());
  });
}

// No element, one element, fewer than ranks, a frame, several segments; uneven and empty chunks.
const std::vector<std::size_t> kCutSizes = {0, 1, 7, 9, 100, 1025, 40001};

struct Forced {
  Collective kind;
  Algorithm algorithm;
};

class Algorithms : public ::testing::TestWithParam<std::tuple<Forced, int>> {
 public:
  std::string text() const {
    const auto& forced = std::get<0>(GetParam());
    return fmt::format("{}={}", collectiveName(forced.kind), algorithmName(forced.algorithm));
  }
  int numRanks() const { return std::get<1>(GetParam()); }
  Collective kind() const { return std::get<0>(GetParam()).kind; }
};

TEST_P(Algorithms, GiveTheSameResult) {
  const int n = numRanks();
  const auto body = [&](Communicator& group) {
    for (const std::size_t size : kCutSizes) {
      const bool hasRoot = kind() == Collective::kBroadcast || kind() == Collective::kReduce;
      for (Rank root = 0; root < (hasRoot ? n : 1); ++root) {
        SCOPED_TRACE(fmt::format("{} ranks, {} elements, root {}", n, size, root));
        Values mine = patternOf(group.rank(), size);
        switch (kind()) {
          case Collective::kBroadcast:
            expectOk(group.broadcast(viewOf(mine), root));
            EXPECT_EQ(mine, patternOf(root, size));
            break;
          case Collective::kReduce:
            expectOk(group.reduce(viewOf(mine), root, ReduceOp::kSum));
            EXPECT_EQ(mine, group.rank() == root ? sumOf(n, size) : patternOf(group.rank(), size));
            break;
          case Collective::kAllReduce:
            expectOk(group.allReduce(viewOf(mine), ReduceOp::kSum));
            EXPECT_EQ(mine, sumOf(n, size));
            break;
          case Collective::kAllGather: {
            std::vector<Values> gathered(static_cast<std::size_t>(n), Values(size));
            std::vector<TensorView> outputs;
            std::transform(gathered.begin(), gathered.end(), std::back_inserter(outputs), viewOf);
            expectOk(group.allGather(viewOf(mine), outputs));
            for (Rank rank = 0; rank < n; ++rank) {
              EXPECT_EQ(gathered[static_cast<std::size_t>(rank)], patternOf(rank, size));
            }
            break;
          }
          default:
            expectOk(group.barrier());
        }
      }
    }
  };
  withAlgorithm(n, text(), body);
  // Every tensor longer than a frame is longer than the ring, in place or not.
  withAlgorithm(n, text(), body, OrdinaryPath::kStaged, 4096);
}

std::vector<Forced> allForced() {
  std::vector<Forced> all;
  for (const Collective kind : {Collective::kBroadcast, Collective::kReduce, Collective::kAllReduce,
                                Collective::kAllGather, Collective::kBarrier}) {
    for (const Algorithm algorithm : algorithmsOf(kind)) {
      all.push_back({kind, algorithm});
    }
  }
  return all;
}

// With 5 and 9 ranks run the paths of 4 and 8, too, and sanitizers take seconds for each.
std::vector<int> numbersOfRanks() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {1, 2, 3, 5, 9};
#else
  return {1, 2, 3, 4, 5, 8, 9};
#endif
}

INSTANTIATE_TEST_SUITE_P(All, Algorithms,
                         ::testing::Combine(::testing::ValuesIn(allForced()), ::testing::ValuesIn(numbersOfRanks())),
                         [](const auto& test) {
                           const auto& forced = std::get<0>(test.param);
                           return fmt::format("{}_{}_{}", collectiveName(forced.kind), algorithmName(forced.algorithm),
                                              std::get<1>(test.param));
                         });

// The tree's levels are complete, cut short, and three; parts above a frame are read from memory or cut into segments.
TEST(Algorithms, TreeGivesTheSameResultOfManyRanks) {
  for (const int n : {17, 33, 66}) {
    for (const OrdinaryPath path : {OrdinaryPath::kAuto, OrdinaryPath::kStaged}) {
      withAlgorithm(
          n, "all_reduce=tree",
          [&](Communicator& group) {
            for (const std::size_t size : {1, 100, 1025}) {
              SCOPED_TRACE(fmt::format("{} ranks, {} elements", n, size));
              Values mine = patternOf(group.rank(), size);
              expectOk(group.allReduce(viewOf(mine), ReduceOp::kSum));
              EXPECT_EQ(mine, sumOf(n, size));
            }
          },
          path, path == OrdinaryPath::kStaged ? 4096 : Options{}.ringBytes);
    }
  }
}

// No rank leaves any barrier before the last one came, whatever the algorithm.
TEST(Barrier, HoldsEverybodyUntilTheLastComes) {
  for (const char* algorithm : {"barrier=direct", "barrier=dissemination"}) {
    for (const int n : {2, 3, 6}) {
      std::vector<std::atomic<int>> rounds(static_cast<std::size_t>(n));
      withAlgorithm(n, algorithm, [&](Communicator& group) {
        for (int round = 1; round <= 100; ++round) {
          rounds[static_cast<std::size_t>(group.rank())] = round;
          expectOk(group.barrier());
          for (const auto& other : rounds) {
            EXPECT_GE(other.load(), round);
          }
        }
      });
    }
  }
}

// A later operation's frames must not lie in a peer's ring before the second-stage frames of an earlier operation: the
// peer may wait for the earlier operation first, and then would never take the frames.
TEST(Order, ALaterShortOperationDoesNotOvertakeTheSecondStageOfALongOne) {
  for (const OrdinaryPath path : {OrdinaryPath::kStaged, OrdinaryPath::kAuto}) {
    withAlgorithm(
        3, "broadcast=chunks",
        [&](Communicator& group) {
          for (int round = 0; round < 20; ++round) {
            Values first = patternOf(group.rank(), 30000);
            Values second = patternOf(group.rank(), 10);
            // Rank 1 calls everything late, so the second stage of the other ranks cannot start yet when they issue the
            // next operation.
            if (group.rank() == 1) {
              std::this_thread::sleep_for(std::chrono::milliseconds(2));
            }
            const auto longWork = group.allReduce(viewOf(first), ReduceOp::kSum);
            if (group.rank() == 2) {
              expectOk(longWork);  // before the call of the short operation
            }
            const auto shortWork = group.broadcast(viewOf(second), 0);
            expectOk(longWork);
            expectOk(shortWork);
            EXPECT_EQ(first, sumOf(3, 30000));
            EXPECT_EQ(second, patternOf(0, 10));
          }
        },
        path);
  }
}

TEST(Algorithms, OneThatIsNotKnownIsRefusedWhenTheGroupIsMade) {
  MemoryStore store;
  Options options;
  options.algorithms = "broadcast=ring";
  const auto group = Communicator::create(store, 0, 1, options, "test");
  ASSERT_FALSE(group.isOk());
  EXPECT_NE(group.status().message().find("SHARDWIRE_ALGORITHMS=broadcast=ring"), std::string::npos)
      << group.status().message();
}

}  // namespace
}  // namespace shardwire::internal
