// A rank that dies while the group is being made: every waiting rank is notified of the death, with the rank's number,
// long before the timeout.
#include "backend/bootstrap/liveness.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "backend/bootstrap/connect.h"
#include "backend/bootstrap/own_ends.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/host_message.h"
#include "backend/fabric/proof.h"
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/shm/shm_message.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/net_namespaces.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::runRanksAsProcesses;

// The timeout of all groups here. A wait that ends in a fraction of the timeout was not ended by the timeout. The
// benches measure how soon, since a loaded test machine may keep any process waiting for a second.
constexpr seconds kTimeout{60};
constexpr seconds kNotTheTimeout{20};

Deadline soon() {
  return Clock::now() + kTimeout;
}

Options over(const std::string& transports) {
  Options options;
  options.transports = transports;
  return options;
}

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

// The ends of a rank that a test makes by hand, up to the point of the rank's death.
OwnEnds prepared(Rank rank, int worldSize, const Options& options) {
  OwnEnds own;
  EXPECT_TRUE(own.prepare(rank, worldSize, options).isOk()) << own.address.failure.message();
  return own;
}

// Expects a survivor's error, and leaves the error's text in the store for the parent to compare.
void expectDeath(Store& store, Rank self, int worldSize, Rank dead, const Options& options) {
  const auto start = Clock::now();
  const auto peers = connectPeers(store, self, worldSize, options, soon(), "g");
  ASSERT_FALSE(peers.isOk());
  EXPECT_LT(Clock::now() - start, kNotTheTimeout);
  const std::string text = peers.status().message();
  EXPECT_EQ(peers.status().code(), StatusCode::kPeerFailed) << text;
  EXPECT_NE(text.find(fmt::format("rank {} (pid", dead)), std::string::npos) << text;
  EXPECT_NE(text.find("died while the group was being made"), std::string::npos) << text;
  ASSERT_TRUE(store.set(fmt::format("text/{}", self), text).isOk());
}

void expectSameTexts(Store& store, int worldSize, const std::set<Rank>& except) {
  std::optional<std::string> first;
  for (Rank rank = 0; rank < worldSize; ++rank) {
    if (except.contains(rank)) {
      continue;
    }
    const auto text = store.get(fmt::format("text/{}", rank), Clock::now());
    ASSERT_TRUE(text.isOk()) << "rank " << rank << " said nothing";
    first = first.value_or(*text);
    EXPECT_EQ(*text, *first);
  }
}

struct Case {
  const char* name;
  const char* transports;
  int worldSize;
};

class DeathOfARank : public ::testing::TestWithParam<Case> {
 protected:
  const int n_ = GetParam().worldSize;
  const Options options_ = over(GetParam().transports);
};

INSTANTIATE_TEST_SUITE_P(Ranks, DeathOfARank,
                         ::testing::Values(Case{"Shm2", "shm", 2}, Case{"Tcp2", "tcp", 2}, Case{"Any3", "", 3},
                                           Case{"Tcp4", "tcp", 4}, Case{"Shm5", "shm", 5}, Case{"Any8", "", 8},
                                           Case{"Tcp8", "tcp", 8}),
                         [](const auto& info) { return info.param.name; });

// With one dying rank, one late rank, and some waiting ranks.
class DeathAmongMany : public DeathOfARank {};
INSTANTIATE_TEST_SUITE_P(Ranks, DeathAmongMany,
                         ::testing::Values(Case{"Any3", "", 3}, Case{"Tcp4", "tcp", 4}, Case{"Shm5", "shm", 5},
                                           Case{"Any8", "", 8}),
                         [](const auto& info) { return info.param.name; });

// The dead rank had published an address and never sent a byte. The rank dies before the other ranks arrive, or while
// the others wait.
TEST_P(DeathOfARank, AfterItPublishedItsAddress) {
  for (const Rank dead : {0, n_ / 2, n_ - 1}) {
    MemoryStore store;
    runRanksAsProcesses(n_,
                        [&](Rank rank) {
                          if (rank == dead) {
                            const OwnEnds own = prepared(rank, n_, options_);
                            ASSERT_TRUE(store.set(addressKey(rank), encodeAddress(own.address)).isOk());
                            die();
                          }
                          expectDeath(store, rank, n_, dead, options_);
                        },
                        kTimeout, {dead});
    expectSameTexts(store, n_, {dead});
  }
}

// While all other ranks wait for a rank that has not arrived: no rank has a reason to send to the dead rank.
TEST_P(DeathAmongMany, WhileAnotherIsAwaited) {
  const Rank dead = n_ - 1;
  const Rank late = 1;
  MemoryStore store;
  runRanksAsProcesses(
      n_,
      [&](Rank rank) {
        if (rank == late) {
          return;
        }
        if (rank == dead) {
          std::thread joining([&] { static_cast<void>(connectPeers(store, rank, n_, options_, soon(), "g")); });
          ASSERT_TRUE(store.get(addressKey(rank), soon()).isOk());
          ASSERT_TRUE(store.get(addressKey(0), soon()).isOk());
          die();
        }
        expectDeath(store, rank, n_, dead, options_);
      },
      kTimeout, {dead});
  expectSameTexts(store, n_, {dead, late});
}

// In the middle of a handshake begun by the dead rank: the rank sends a hello, and is dead when the answer arrives.
TEST_P(DeathOfARank, AfterItDialed) {
  const Rank dead = n_ - 1;
  MemoryStore store;
  runRanksAsProcesses(n_,
                      [&](Rank rank) {
                        if (rank == dead) {
                          OwnEnds own = prepared(rank, n_, options_);
                          ASSERT_TRUE(store.set(addressKey(rank), encodeAddress(own.address)).isOk());
                          const auto first = decodeAddress(*store.get(addressKey(0), soon()));
                          const auto socket = dialProcess(first->socketName, soon());
                          ASSERT_TRUE(socket.isOk());
                          const HostHello hello{*processId(), makeHostToken(first->processToken, "")};
                          ASSERT_TRUE(sendUnix(*socket, encodeHostHello(hello), {}, soon()).isOk());
                          die();
                        }
                        expectDeath(store, rank, n_, dead, options_);
                      },
                      kTimeout, {dead});
  expectSameTexts(store, n_, {dead});
}

// In the middle of a handshake begun by other ranks: over shared memory one rank has done its half, over tcp all ranks
// dial the lowest rank.
TEST_P(DeathOfARank, WhenItWasDialed) {
  const bool isTcp = options_.transports == "tcp";
  const Rank dead = isTcp ? 0 : n_ - 1;
  MemoryStore store;
  runRanksAsProcesses(n_,
                      [&](Rank rank) {
                        if (rank != dead) {
                          return expectDeath(store, rank, n_, dead, options_);
                        }
                        OwnEnds own = prepared(rank, n_, options_);
                        ASSERT_TRUE(store.set(addressKey(rank), encodeAddress(own.address)).isOk());
                        const Rank other = isTcp ? 1 : 0;
                        ASSERT_TRUE(store.get(addressKey(other), soon()).isOk());
                        const auto inbox =
                            isTcp ? nullptr
                                  : Inbox::findInProcess(decodeShmAddress(own.address.transports[0].bytes)->inboxId);
                        while (!isTcp && inbox->slot(other).reader()->state == 0) {
                          std::this_thread::sleep_for(milliseconds(1));
                        }
                        std::this_thread::sleep_for(milliseconds(20));  // over tcp rank 1 has dialed by now, mostly
                        die();
                      },
                      kTimeout, {dead});
  expectSameTexts(store, n_, {dead});
}

// At any time: a group that is made all the same is also right, if the dead rank had finished its part.
TEST_P(DeathOfARank, AtARandomMoment) {
  std::mt19937 random(static_cast<unsigned>(n_));
  for (int round = 0; round < 6; ++round) {
    const auto dead = static_cast<Rank>(random() % static_cast<unsigned>(n_));
    const std::chrono::microseconds delay(random() % 4000);
    MemoryStore store;
    runRanksAsProcesses(
        n_,
        [&](Rank rank) {
          if (rank == dead) {
            std::thread joining([&] {
              const auto peers = connectPeers(store, rank, n_, options_, soon(), "g");
              std::this_thread::sleep_for(kTimeout);  // holds the peers until the process dies
            });
            ASSERT_TRUE(store.get(addressKey(rank), soon()).isOk());
            std::this_thread::sleep_for(delay);
            die();
          }
          const auto start = Clock::now();
          const auto peers = connectPeers(store, rank, n_, options_, soon(), "g");
          EXPECT_LT(Clock::now() - start, kNotTheTimeout);
          if (!peers.isOk()) {
            EXPECT_NE(peers.status().message().find(fmt::format("rank {} (pid", dead)), std::string::npos)
                << peers.status().message();
            EXPECT_EQ(peers.status().code(), StatusCode::kPeerFailed) << peers.status().message();
          }
        },
        kTimeout, {dead});
  }
}

// The store of most jobs is a thread of rank 0.
class StoreOfRank0 final : public Store {
 public:
  explicit StoreOfRank0(MemoryStore& store)
      : store_(store),
        shared_(new (mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                    Shared()) {}
  ~StoreOfRank0() override { ::munmap(shared_, sizeof(Shared)); }
  Status set(const std::string& key, std::string_view value) override {
    return shared_->isGone ? broken() : store_.set(key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    while (!shared_->isGone) {
      auto value = store_.get(key, std::min(deadline, Clock::now() + milliseconds(10)));
      if (value.isOk() || Clock::now() >= deadline) {
        shared_->numReaders += value.isOk() && key == addressKey(0) && !hasRead_.exchange(true) ? 1 : 0;
        return value;
      }
    }
    return broken();
  }
  int numReaders() const { return shared_->numReaders; }
  void vanish() { shared_->isGone = true; }

 private:
  struct Shared {
    std::atomic<bool> isGone{false};
    std::atomic<int> numReaders{0};  // processes with rank 0's address
  };
  static Status broken() { return {StatusCode::kSystem, "the store does not answer"}; }
  MemoryStore& store_;
  Shared* shared_;
  std::atomic<bool> hasRead_{false};
};

TEST(DeathOfRank0, IsNamedWhenTheStoreGoesWithIt) {
  MemoryStore memory;
  StoreOfRank0 store(memory);
  runRanksAsProcesses(4,
                      [&](Rank rank) {
                        if (rank == 3) {  // never publishes an address: the other ranks wait
                          return;
                        }
                        if (rank != 0) {
                          const auto peers = connectPeers(store, rank, 4, {}, soon(), "g");
                          ASSERT_FALSE(peers.isOk());
                          EXPECT_EQ(peers.status().code(), StatusCode::kPeerFailed);
                          EXPECT_NE(peers.status().message().find("rank 0 (pid"), std::string::npos)
                              << peers.status().message();
                          return;
                        }
                        std::thread joining([&] { static_cast<void>(connectPeers(store, rank, 4, {}, soon(), "g")); });
                        while (store.numReaders() < 3) {  // all of ranks 0, 1, 2
                          std::this_thread::yield();
                        }
                        store.vanish();
                        die();
                      },
                      kTimeout, {0});
}

// A rank that made a group, used the group and left normally does not count as dead for ranks still connecting.
TEST(LeavingRank, IsNotTakenForDead) {
  for (int round = 0; round < 5; ++round) {
    MemoryStore store;
    runRanksAsProcesses(6, [&](Rank rank) {
      const auto peers = connectPeers(store, rank, 6, {}, soon(), "g");
      EXPECT_TRUE(peers.isOk()) << peers.status().message();
    });
  }
}

TEST(LifeWatch, DistinguishesTheLivingAndTheDeadOfThisHost) {
  auto mine = makeAddress();
  auto theirs = makeAddress();
  ASSERT_TRUE(mine.isOk() && theirs.isOk());
  mine->socketName = theirs->socketName = "some";
  auto sign = LifeSign::create({}, nullptr, 2, &*theirs);
  ASSERT_TRUE(sign.isOk()) << sign.status().message();
  LifeWatch watch(*mine, {});
  EXPECT_FALSE(watch.isDead(1, *theirs));
  EXPECT_FALSE(watch.isDead(1, *theirs));
  *sign = LifeSign();
  EXPECT_TRUE(watch.isDead(1, *theirs));
  EXPECT_TRUE(watch.refuses(1));
  LifeWatch late(*mine, {});
  EXPECT_TRUE(late.isDead(1, *theirs));
  theirs->kernel = "elsewhere";  // the kernels differ, so liveness is unknown
  EXPECT_FALSE(late.isDead(2, *theirs));
}

// More dialers than a queue holds do not make a rank dead.
TEST(LifeWatch, IsUnsureBehindAFullQueue) {
  auto mine = makeAddress();
  auto theirs = makeAddress();
  ASSERT_TRUE(mine.isOk() && theirs.isOk());
  mine->socketName = theirs->socketName = "some";
  const auto listener = listenUnix(theirs->lifeName, 0);
  ASSERT_TRUE(listener.isOk());
  std::vector<Fd> crowd;
  for (auto one = tryDialUnix(theirs->lifeName); one.isOk(); one = tryDialUnix(theirs->lifeName)) {
    crowd.push_back(std::move(*one));
  }
  LifeWatch watch(*mine, {});
  EXPECT_FALSE(watch.isDead(1, *theirs));
}

// Rank 1 is alone on its host, so other ranks can see the end of rank 1 only over the network.
TEST(DeathBetweenHosts, IsNoticedByWhoHadSeenItAlive) {
  std::string whyNot;
  const auto hosts = testing::NetNamespaces::create(testing::NetNamespaces::Addresses::kIpv4, &whyNot);
  if (hosts == nullptr) {
    GTEST_SKIP() << "no two hosts here: " << whyNot;
  }
  MemoryStore store;
  const Options options = over("tcp");
  runRanksAsProcesses(2,
                      [&](Rank rank) {
                        hosts->enter(rank);
                        if (rank == 0) {
                          return expectDeath(store, 0, 2, 1, options);
                        }
                        OwnEnds own = prepared(1, 2, options);
                        // Replaces rank 1's own sign of life, on which the test cannot see rank 0's connection.
                        auto sign = listenOnInterfaces(*listInterfaces(), options);
                        ASSERT_TRUE(sign.isOk());
                        own.address.lifeLinks = sign->addresses;
                        ASSERT_TRUE(store.set(addressKey(1), encodeAddress(own.address)).isOk());
                        ASSERT_TRUE(WaitLimit(soon()).waitFor(sign->sockets[0], POLLIN, "somebody to watch").isOk());
                        die();
                      },
                      kTimeout, {1});
}

// A rank that was dead before any rank looked, or that hides behind a firewall, is not reported as dead; the timeout's
// text states the observations.
TEST(DeathBetweenHosts, IsNotGuessedFromARefusal) {
  std::string whyNot;
  const auto hosts = testing::NetNamespaces::create(testing::NetNamespaces::Addresses::kIpv4, &whyNot);
  if (hosts == nullptr) {
    GTEST_SKIP() << "no two hosts here: " << whyNot;
  }
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    hosts->enter(rank);
    if (rank == 1) {
      const OwnEnds own = prepared(1, 2, over("tcp"));
      ASSERT_TRUE(store.set(addressKey(1), encodeAddress(own.address)).isOk());
      return;
    }
    ASSERT_TRUE(store.get(addressKey(1), soon()).isOk());
    const auto peers = connectPeers(store, 0, 2, over("tcp"), Clock::now() + seconds(2), "g");
    ASSERT_FALSE(peers.isOk());
    if (peers.status().code() != StatusCode::kPeerFailed) {  // rank 1 may end late, and be seen alive
      EXPECT_EQ(peers.status().code(), StatusCode::kTimeout);
      EXPECT_NE(peers.status().message().find("rank 1 refuses to connect: it died, or a firewall"), std::string::npos)
          << peers.status().message();
    }
  });
}

// Both hosts have an address in common, like the bridges of docker on two hosts. At this address rank 0's own host
// answers that nobody listens.
TEST(DeathBetweenHosts, IsNotConcludedFromTheAnswerOfTheOwnHost) {
  std::string whyNot;
  const auto hosts = testing::NetNamespaces::create(testing::NetNamespaces::Addresses::kIpv4, &whyNot);
  if (hosts == nullptr) {
    GTEST_SKIP() << "no two hosts here: " << whyNot;
  }
  MemoryStore store;
  Options options = over("tcp");
  options.links = LinksWhen::kLazy;
  runRanksAsProcesses(2, [&](Rank rank) {
    hosts->enter(rank);
    ASSERT_EQ(std::system("ip addr add 172.31.9.1/32 dev sw0"), 0);
    auto group = Communicator::create(store, rank, 2, options, "g");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    if (rank == 1) {  // lives until rank 0 has its error
      EXPECT_TRUE(store.get("done", soon()).isOk());
      return;
    }
    hosts->setCable(false);
    float value = 1;
    auto work = (*group)->allReduce(TensorView::contiguous(&value, DType::kFloat32, {1}), ReduceOp::kSum);
    const Status done = work.isOk() ? (*work)->wait() : work.status();
    EXPECT_EQ(done.code(), StatusCode::kPeerFailed);
    EXPECT_NE(done.message().find("rank 1 (pid"), std::string::npos) << done.message();
    EXPECT_NE(done.message().find("does not answer: its host or the network to it is down"), std::string::npos)
        << done.message();
    ASSERT_TRUE(store.set("done", "").isOk());
  });
}

}  // namespace
}  // namespace shardwire::internal
