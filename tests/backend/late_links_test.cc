// Ranks that are joined when an operation first needs them: which ranks are joined, in what order things happen, and
// which errors late ranks receive.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "shardwire/communicator.h"
#include "tests/backend/thread_group.h"
#include "tests/support/random.h"
#include "tests/support/rounds.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Shared {
  std::atomic<int> stage{0};
  std::atomic<int> pids[8]{};
};

// All tests over each transport that joins ranks late.
class LateLinks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string_view(GetParam()) == "rdma" && testOptions().transports != "rdma") {
      GTEST_SKIP() << "needs an RDMA device: tests/rig/run_rdma.py";
    }
  }
  static Options lazy() {
    Options options = testOptions();
    options.links = LinksWhen::kLazy;
    options.transports = GetParam();
    return options;
  }
  static void withProcesses(int n, const std::function<void(Communicator&, Shared&)>& body,
                            const std::set<Rank>& mayDie = {},
                            const std::function<void(std::unique_ptr<Communicator>&, Shared&)>& owning = nullptr);
};
INSTANTIATE_TEST_SUITE_P(Over, LateLinks, ::testing::Values("shm", "tcp", "rdma"),
                         [](const auto& info) { return std::string(info.param); });

// Number of joined peers of a rank.
int numJoined(Communicator& group) {
  const std::string text = group.describeTransports();
  int joined = group.worldSize() - 1;
  for (std::size_t at = text.find("when an operation first needs it"); at != std::string::npos;
       at = text.find("when an operation first needs it", at + 1)) {
    --joined;
  }
  return joined;
}

// Each rank has one row of ten elements, and wants the rows of the next `reach` ranks.
LocalSpec ringSpec(Rank rank, int n, int reach) {
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{n, 10}, .dtype = DType::kInt64});
  const auto row = [](Rank holder) {
    return LocalTensor{.localShape = {1, 10}, .slices = {{.slice = {{holder, 0}, {1, 10}}, .localOffset = {0, 0}}}};
  };
  spec.inputs.push_back(row(rank));
  for (int i = 1; i <= reach; ++i) {
    spec.outputs.push_back(row((rank + i) % n));
  }
  return spec;
}

// ---- which ranks are joined

TEST_P(LateLinks, AreMadeByTheOperationsThatNeedThem) {
  constexpr int kRanks = 12;
  std::atomic<int> looked{0};
  std::atomic<int> sent{0};
  std::atomic<int> counted{0};
  withGroup(
      kRanks,
      [&](Communicator& group) {
        EXPECT_EQ(numJoined(group), 0) << group.describeTransports();
        ++looked;
        await(looked, kRanks);
        std::vector<std::int64_t> values = {group.rank()};
        if (group.rank() == 3) {
          expectOk(group.send(viewOf(values), 7, 1));
          EXPECT_EQ(numJoined(group), 1);
        } else if (group.rank() == 7) {
          expectOk(group.recv(viewOf(values), kAnySource, 1));  // joined from the other end
          EXPECT_EQ(values[0], 3);
          EXPECT_EQ(numJoined(group), 1);
        }
        ++sent;
        await(sent, kRanks);
        if (group.rank() != 3 && group.rank() != 7) {
          EXPECT_EQ(numJoined(group), 0);
        }
        ++counted;
        await(counted, kRanks);
        values = {1};
        expectOk(group.allReduce(viewOf(values), ReduceOp::kSum));
        EXPECT_EQ(values[0], kRanks);
      },
      lazy());
}

TEST_P(LateLinks, AreAllMadeAtOnceInSmallGroupsUnlessTheUserSaysOtherwise) {
  Options options = lazy();
  options.links = LinksWhen::kAuto;
  withGroup(
      4, [](Communicator& group) { EXPECT_EQ(numJoined(group), 3); }, options);
  std::atomic<int> looked{0};
  withGroup(
      17,
      [&](Communicator& group) {
        EXPECT_LT(numJoined(group), 16);
        ++looked;
        await(looked, 17);
      },
      options);
  options.links = LinksWhen::kEager;
  withGroup(
      17, [](Communicator& group) { EXPECT_EQ(numJoined(group), 16); }, options);
}

TEST_P(LateLinks, ACompiledOpMakesOnlyThoseThatItMovesBytesOver) {
  constexpr int kRanks = 40;
  std::atomic<int> counted{0};
  withGroup(
      kRanks,
      [&](Communicator& group) {
        auto op = group.compileOp(ringSpec(group.rank(), kRanks, 4));
        ASSERT_TRUE(op.isOk()) << op.status().message();
        const int before = numJoined(group);
        std::vector<std::int64_t> mine(10, group.rank());
        std::vector<std::vector<std::int64_t>> got(4, std::vector<std::int64_t>(10, -1));
        std::vector<TensorView> outputs;
        for (auto& each : got) {
          outputs.push_back(TensorView::contiguous(each.data(), DType::kInt64, {1, 10}));
        }
        const TensorView input = TensorView::contiguous(mine.data(), DType::kInt64, {1, 10});
        expectOk((*op)->run({&input, 1}, outputs));
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(got[static_cast<std::size_t>(i)], std::vector<std::int64_t>(10, (group.rank() + i + 1) % kRanks));
        }
        EXPECT_LE(numJoined(group), before + 8);  // reads from four ranks, and four ranks read from this rank
        ++counted;
        await(counted, kRanks);
      },
      lazy());
}

// The store as rank 1 of three sees the store: rank 2's address arrives when the other ranks have finished making the
// group.
class SlowStore final : public Store {
 public:
  SlowStore(Store& store, std::atomic<int>& numMade) : store_(store), numMade_(numMade) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(key, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    if (!key.ends_with("/2")) {
      return store_.get(key, deadline);
    }
    isAsked_ ? await(numMade_, 2)
             : std::this_thread::sleep_for(milliseconds(300));  // until a waiting rank looks around
    return std::exchange(isAsked_, true) ? store_.get(key, deadline) : Status{StatusCode::kTimeout, "not there yet"};
  }

 private:
  Store& store_;
  std::atomic<int>& numMade_;
  bool isAsked_ = false;
};

// A rank that has read all addresses is finished and closes its sign of life: the rank did not die.
TEST_P(LateLinks, ARankMayBeThroughWhileAnotherStillReads) {
  MemoryStore store;
  std::atomic<int> numMade{0};
  SlowStore slow(store, numMade);
  testing::runRanksAsThreads(3, [&](Rank rank) {
    auto group = Communicator::create(rank == 1 ? static_cast<Store&>(slow) : store, rank, 3, lazy(), "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    ++numMade;
    std::vector<std::int64_t> values = {1};
    expectOk((*group)->allReduce(viewOf(values), ReduceOp::kSum));
    EXPECT_EQ(values[0], 3);
    await(numMade, 3);
  });
}

// Ranks of one host are joined over shared memory, ranks of two hosts over tcp.
TEST(LateLinksOfTwoHosts, AreOfBothKindsInOneGroup) {
  constexpr int kRanks = 6;
  MemoryStore store;
  std::atomic<int> counted{0};
  testing::runRanksAsThreads(kRanks, [&](Rank rank) {
    Options options = testOptions();
    options.links = LinksWhen::kLazy;
    options.transports = "shm,tcp";
    options.hostId = rank < 3 ? "one" : "other";
    auto group = Communicator::create(store, rank, kRanks, options, "late");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    for (const Rank distance : {1, 2}) {  // the second time from the other end of some
      auto values = patternOf(rank, 50000, distance);
      std::vector<std::int64_t> got(values.size());
      auto work = (*group)->send(viewOf(values), (rank + distance) % kRanks, 0);
      const Rank from = (rank + kRanks - distance) % kRanks;
      expectOk((*group)->recv(viewOf(got), from, 0));
      expectOk(work);
      EXPECT_EQ(got, patternOf(from, got.size(), distance));
    }
    EXPECT_EQ(numJoined(**group), 4);
    const std::string text = (*group)->describeTransports();
    EXPECT_NE(text.find(": shm, "), std::string::npos) << text;
    EXPECT_NE(text.find(": tcp, joined when"), std::string::npos) << text;
    ++counted;
    await(counted, kRanks);
  });
}

// ---- in what order

TEST_P(LateLinks, RandomOperationsOverSomeOfThePeersGiveWhatTheyShould) {
  const std::uint64_t seed = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 20261122);
  for (int round = 0; round < testing::rounds(5); ++round) {
    constexpr int kRanks = 6;
    withGroup(
        kRanks,
        [&](Communicator& group) {
          testing::Random random(seed + static_cast<std::uint64_t>(round));  // the same on all ranks
          std::vector<std::vector<std::int64_t>> tensors;
          std::vector<WorkPtr> works;
          std::vector<std::pair<std::size_t, std::vector<std::int64_t>>> expected;
          tensors.reserve(60);
          for (int i = 0; i < 30; ++i) {
            const auto size = static_cast<std::size_t>(random.chance(30) ? 300000 : random.between(0, 99));
            const auto a = static_cast<Rank>(random.between(0, kRanks - 1));
            const auto b = static_cast<Rank>((a + random.between(1, kRanks - 1)) % kRanks);
            const bool isMessage = random.chance(50);
            tensors.push_back(patternOf(group.rank(), size, i));
            if (isMessage && (group.rank() == a || group.rank() == b)) {
              auto work = group.rank() == a ? group.send(viewOf(tensors.back()), b, i)
                                            : group.recv(viewOf(tensors.back()), a, i);
              ASSERT_TRUE(work.isOk());
              works.push_back(std::move(*work));
              expected.emplace_back(tensors.size() - 1, patternOf(a, size, i));
            } else if (!isMessage) {
              auto work = group.broadcast(viewOf(tensors.back()), a);
              ASSERT_TRUE(work.isOk());
              works.push_back(std::move(*work));
              expected.emplace_back(tensors.size() - 1, patternOf(a, size, i));
            }
          }
          for (const WorkPtr& work : works) {
            const Status status = work->wait();
            ASSERT_TRUE(status.isOk()) << status.message() << ", seed " << seed;
          }
          for (const auto& [index, values] : expected) {
            ASSERT_EQ(tensors[index], values) << "seed " << seed << ", tensor " << index;
          }
        },
        lazy());
  }
}

// ---- what comes late

TEST_P(LateLinks, ALatePeerReceivesTheFailureOfTheGroup) {
  std::atomic<bool> failed{false};
  std::atomic<int> ended{0};
  withGroup(
      3,
      [&](Communicator& group) {
        std::vector<std::int64_t> values = {1};
        if (group.rank() == 0) {
          group.abort("no more");
          failed = true;
        }
        while (!failed) {
          std::this_thread::yield();
        }
        if (group.rank() == 1) {
          auto work = group.recv(viewOf(values), 0, 0);
          ASSERT_TRUE(work.isOk());
          const Status status = (*work)->wait();
          EXPECT_EQ(status.code(), StatusCode::kAborted);
          EXPECT_NE(status.message().find("no more"), std::string::npos) << status.message();
        }
        ++ended;
        await(ended, 3);
      },
      lazy());
}

// The receiving rank and the revoking rank have no link, and no operation of the revoking rank needs one.
TEST_P(LateLinks, AreMadeByARevocation) {
  std::atomic<bool> waits{false};
  std::atomic<int> looked{0};
  std::atomic<int> ended{0};
  withGroup(
      4,
      [&](Communicator& group) {
        std::vector<std::int64_t> values = {1};
        EXPECT_EQ(group.revocation(), "");
        ++looked;
        await(looked, 4);
        if (group.rank() == 2) {
          auto work = group.recv(viewOf(values), 3, 0);
          ASSERT_TRUE(work.isOk());
          waits = true;
          const Status status = (*work)->wait();
          EXPECT_EQ(status.code(), StatusCode::kAborted);
          EXPECT_NE(status.message().find("rank 0 (pid "), std::string::npos) << status.message();
          EXPECT_NE(status.message().find("revoked the group"), std::string::npos) << status.message();
        }
        while (!waits) {
          std::this_thread::yield();
        }
        if (group.rank() == 0) {
          group.revoke();
          group.revoke("the first notice counts");
        }
        while (group.revocation().empty()) {
          std::this_thread::yield();
        }
        EXPECT_TRUE(group.revocation().starts_with("rank 0 (pid ")) << group.revocation();
        EXPECT_EQ(group.barrier().status().code(), StatusCode::kAborted);
        ++ended;
        await(ended, 4);
      },
      lazy());
}

// The idle rank has made no call yet, and links back: see Inbox.WakesAnOwnerThatAwaitsAnnouncements.
TEST_P(LateLinks, AnIdleRankAnswers) {
  std::atomic<int> sent{0};
  withGroup(
      2,
      [&](Communicator& group) {
        std::vector<std::int64_t> values = {5};
        if (group.rank() == 0) {
          expectOk(group.send(viewOf(values), 1, 0));  // a short one is sent without the receiver's call
          ++sent;
        } else {
          await(sent, 1);
          expectOk(group.recv(viewOf(values), 0, 0));
        }
      },
      lazy());
}

// ---- processes

void stop(pid_t pid) {
  ::kill(pid, SIGSTOP);
  testing::awaitStopped(pid);
}

// Runs `body` on ranks that are processes, over one group whose links are made when operations need them.
void LateLinks::withProcesses(int n, const std::function<void(Communicator&, Shared&)>& body,
                              const std::set<Rank>& mayDie,
                              const std::function<void(std::unique_ptr<Communicator>&, Shared&)>& owning) {
  MemoryStore store;
  testing::SharedValue<Shared> shared;
  testing::runRanksAsProcesses(
      n,
      [&](Rank rank) {
        auto group = Communicator::create(store, rank, n, lazy(), "late");
        ASSERT_TRUE(group.isOk()) << group.status().message();
        shared->pids[rank] = ::getpid();
        ++shared->stage;
        await(shared->stage, n);
        owning != nullptr ? owning(*group, *shared) : body(**group, *shared);
      },
      testing::kRankTimeLimit, mayDie);
}

TEST_P(LateLinks, JoinProcessesToo) {
  withProcesses(5, [](Communicator& group, Shared& shared) {
    auto values = patternOf(group.rank(), 100000);
    const Rank next = (group.rank() + 1) % 5;
    const Rank previous = (group.rank() + 4) % 5;
    auto work = group.send(viewOf(values), next, 0);
    std::vector<std::int64_t> got(values.size());
    expectOk(group.recv(viewOf(got), previous, 0));
    expectOk(work);
    EXPECT_EQ(got, patternOf(previous, 100000));
    EXPECT_EQ(numJoined(group), 2);
    ++shared.stage;
    await(shared.stage, 10);
  });
}

TEST_P(LateLinks, ARankThatDiedBeforeItWasNeededIsNamed) {
  withProcesses(3,
                [](Communicator& group, Shared&) {
                  if (group.rank() == 2) {
                    ::kill(::getpid(), SIGKILL);
                  }
                  std::vector<std::int64_t> values = {1};
                  const auto before = Clock::now();
                  auto work = group.allReduce(viewOf(values), ReduceOp::kSum);
                  const Status status = work.isOk() ? (*work)->wait() : work.status();
                  EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
                  EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
                  EXPECT_LT(Clock::now() - before, seconds(10));
                },
                {2});
}

TEST_P(LateLinks, ARankThatLeftBeforeItWasNeededIsNamed) {
  withProcesses(2, nullptr, {}, [](std::unique_ptr<Communicator>& group, Shared& shared) {
    if (group->rank() == 1) {
      group.reset();
      ++shared.stage;
      await(shared.stage, 4);
      return;
    }
    await(shared.stage, 3);
    std::vector<std::int64_t> values = {1};
    auto work = group->send(viewOf(values), 1, 0);
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    ++shared.stage;
  });
}

// Rank 0 could not dial: rank 1 took no part in the failed call, and dials rank 0 later.
TEST_P(LateLinks, APeerReceivesTheReasonOfALinkThatFailedOnTheOtherSideAlone) {
#if defined(__SANITIZE_ADDRESS__)
  if (std::string_view(GetParam()) == "shm") {
    GTEST_SKIP()
        << "the sanitizer looks at the types of objects through a pipe, and there is no descriptor left for it";
  }
#endif
  withProcesses(2, [](Communicator& group, Shared& shared) {
    std::vector<std::int64_t> values = {1};
    if (group.rank() == 1) {
      await(shared.stage, 3);
      auto work = group.send(viewOf(values), 0, 0, {.timeout = seconds(10)});
      const Status status = work.isOk() ? (*work)->wait() : work.status();
      // The same code as on rank 0; the handshake of rdma sends the text and no code.
      const StatusCode asThere =
          std::string_view(GetParam()) == "rdma" ? StatusCode::kUnsupported : StatusCode::kSystem;
      EXPECT_EQ(status.code(), asThere) << status.message();
      EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("it gave up: rank 1"), std::string::npos) << status.message();
      ++shared.stage;
      return;
    }
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
    const rlimit none{3, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    auto work = group.send(viewOf(values), 1, 0);
    const Status status = work.isOk() ? (*work)->wait() : work.status();
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_EQ(status.code(), StatusCode::kSystem) << status.message();
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    ++shared.stage;
    await(shared.stage, 4);
  });
}

// The stopped rank does not answer at its Unix socket: the other ranks continue meanwhile. When the rank continues, so
// does the group.
TEST_P(LateLinks, AStoppedRankHoldsUpOnlyThoseThatNeedIt) {
  withProcesses(3, [](Communicator& group, Shared& shared) {
    std::vector<std::int64_t> values = {group.rank()};
    if (group.rank() == 2) {
      await(shared.stage, 4);
      expectOk(group.recv(viewOf(values), 0, 0));
      EXPECT_EQ(values[0], 0);
      return;
    }
    if (group.rank() == 0) {
      stop(shared.pids[2]);
      auto late = group.send(viewOf(values), 2, 0);
      std::vector<std::int64_t> got(1);
      expectOk(group.recv(viewOf(got), 1, 1));  // over a link that is made while the link to rank 2 is not
      EXPECT_EQ(got[0], 1);
      EXPECT_FALSE((*late)->isDone());
      ::kill(shared.pids[2], SIGCONT);
      ++shared.stage;
      expectOk(late);
    } else {
      expectOk(group.send(viewOf(values), 0, 1));
      await(shared.stage, 4);
    }
  });
}

// The ranks that gave up had no link to the stopped rank: this rank receives the error when the links are made.
TEST_P(LateLinks, ALatePeerReceivesThatAnOperationWasGivenUp) {
  withProcesses(3, [](Communicator& group, Shared& shared) {
    const bool isLate = group.rank() == 2;
    if (group.rank() == 0) {
      stop(shared.pids[2]);
      ++shared.stage;
    }
    await(shared.stage, isLate ? 6 : 4);
    auto op = group.compileOp(ringSpec(group.rank(), 3, 1), isLate ? seconds(30) : seconds(3));
    ++shared.stage;
    await(shared.stage, 6);
    if (group.rank() == 0) {
      ::kill(shared.pids[2], SIGCONT);
    }
    ASSERT_FALSE(op.isOk());
    EXPECT_EQ(op.status().code(), StatusCode::kTimeout) << op.status().message();
    EXPECT_NE(op.status().message().find(isLate ? "was given up by rank" : "rank 2 did not arrive"), std::string::npos)
        << op.status().message();
    auto again = group.compileOp(ringSpec(group.rank(), 3, 1));
    EXPECT_TRUE(again.isOk()) << again.status().message();
    ++shared.stage;
    await(shared.stage, 10);
  });
}

TEST_P(LateLinks, AnOperationThatExpiresNamesWhoseProcessDoesNotAnswer) {
  withProcesses(2, [](Communicator& group, Shared& shared) {
    if (group.rank() == 1) {
      while (shared.stage < 3) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return;
    }
    stop(shared.pids[1]);
    std::vector<std::int64_t> values = {1};
    auto work = group.send(viewOf(values), 1, 0, {.timeout = milliseconds(300)});
    ASSERT_TRUE(work.isOk());
    const Status status = (*work)->wait();
    ::kill(shared.pids[1], SIGCONT);
    ++shared.stage;
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("(stopped"), std::string::npos) << status.message();
  });
}

}  // namespace
}  // namespace shardwire::internal
