// Connecting the ranks of a group, over shared memory and wires. First groups that are made, of one rank and of many,
// with and without a roster. Then errors, the same on every rank: absent ranks, unreachable peers, wrong addresses,
// different sizes. At last one store for many groups and for several attempts of a job.
#include "backend/bootstrap/connect.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/wait_limit.h"
#include "backend/base/wire.h"
#include "backend/bootstrap/address.h"
#include "backend/bootstrap/failure_board.h"
#include "backend/bootstrap/lookout.h"
#include "backend/bootstrap/own_ends.h"
#include "backend/bootstrap/store_attempts.h"
#include "backend/bootstrap/store_rounds.h"
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/shm_message.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using testing::runRanksAsProcesses;
using testing::runRanksAsThreads;

Result<Peers> connect(Store& store, Rank rank, int worldSize, Duration timeout = std::chrono::seconds(10),
                      const Options& options = {}) {
  return connectPeers(store, rank, worldSize, options, Clock::now() + timeout, "g");
}

// The address of a rank without a wire.
RankAddress addressByShmOnly(std::uint32_t worldSize = 2) {
  auto address = makeAddress();
  SW_CHECK(address.isOk());
  address->worldSize = worldSize;
  for (std::size_t kind = 1; kind < address->transports.size(); ++kind) {
    address->transports[kind].whyNot = "not on this one";
  }
  address->socketName = address->lifeName + "-socket";
  address->transports[0].bytes =
      encodeShmAddress({{*makeRandomId(), address->socketName, {}}, 0, {}, OrdinaryPath::kAuto});
  return *address;
}

void expectError(const Result<Peers>& peers, StatusCode code, const std::vector<std::string>& words) {
  ASSERT_FALSE(peers.isOk());
  EXPECT_EQ(peers.status().code(), code) << peers.status().message();
  for (const std::string& word : words) {
    EXPECT_NE(peers.status().message().find(word), std::string::npos)
        << "no '" << word << "' in: " << peers.status().message();
  }
}

// Counts the requests to the store.
class AskedStore final : public Store {
 public:
  explicit AskedStore(Store& store) : store_(store) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(key, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    ++numAsked;
    return store_.get(key, deadline);
  }
  int numAsked = 0;

 private:
  Store& store_;
};

// Counts the values that are set and found.
class CountingStore final : public Store {
 public:
  Status set(const std::string& key, std::string_view value) override {
    ++numSets;
    return store_.set(key, value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    auto value = store_.get(key, deadline);
    numFound += value.isOk() ? 1 : 0;
    return value;
  }
  std::atomic<int> numSets{0};
  std::atomic<int> numFound{0};

 private:
  MemoryStore store_;
};

TEST(ConnectPeers, AWorldOfOneNeedsNobody) {
  CountingStore store;
  const auto peers = connect(store, 0, 1);
  ASSERT_TRUE(peers.isOk()) << peers.status().message();
  EXPECT_EQ(store.numSets, 0);
  EXPECT_EQ(peers->connections.size(), 1U);
  EXPECT_EQ(peers->hosts, std::vector<std::int32_t>{0});
  ASSERT_NE(peers->doorbell, nullptr);
  peers->doorbell->ringSelf();
}

TEST(ConnectPeers, RefusesRanksThatDoNotExist) {
  MemoryStore store;
  expectError(connect(store, 2, 2), StatusCode::kInvalidArgument, {"rank 2 of 2"});
  expectError(connect(store, -1, 2), StatusCode::kInvalidArgument, {"rank -1"});
  expectError(connect(store, 0, 0), StatusCode::kInvalidArgument, {"rank 0 of 0"});
}

TEST(ConnectPeers, JoinsManyRanks) {
  MemoryStore store;
  runRanksAsThreads(12, [&](Rank rank) {
    const auto peers = connect(store, rank, 12);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    for (Rank peer = 0; peer < 12; ++peer) {
      EXPECT_EQ(peers->connections[static_cast<std::size_t>(peer)] == nullptr, peer == rank);
    }
  });
}

// Rank 0 reads n addresses, and each other rank rank 0's and the roster: not n for each.
TEST(ConnectPeers, ManyRanksAskTheStoreForLittle) {
  constexpr int kRanks = 20;
  runRanksAsProcesses(1, [&](Rank) {  // in which no group has ended yet (store_rounds.h)
    CountingStore store;
    const auto start = Clock::now();
    runRanksAsThreads(kRanks, [&](Rank rank) {
      const auto peers = connect(store, rank, kRanks);
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
    });
    const auto numLooks = (Clock::now() - start) / Lookout::kLookEvery;  // with a request for the rank's own address
    EXPECT_EQ(store.numSets, kRanks + 1);
    EXPECT_LE(store.numFound, kRanks + 1 + 2 * (kRanks - 1) + kRanks * numLooks);
  });
}

TEST(ConnectPeers, ARosterWithoutThisRankIsNotTaken) {
  constexpr int kRanks = 6;
  MemoryStore earlier;
  runRanksAsThreads(kRanks, [&](Rank rank) { EXPECT_TRUE(connect(earlier, rank, kRanks).isOk()); });
  const auto theirs = earlier.get("shardwire/roster", Clock::now());
  ASSERT_TRUE(theirs.isOk());
  const std::string& whole = *theirs;
  for (const std::string& roster :
       {whole, std::string(), std::string("nonsense"), whole.substr(0, whole.size() / 2), whole + "more"}) {
    MemoryStore store;
    ASSERT_TRUE(store.set("shardwire/roster", roster).isOk());
    runRanksAsThreads(kRanks, [&](Rank rank) {
      const auto peers = connect(store, rank, kRanks);
      EXPECT_TRUE(peers.isOk()) << peers.status().message();
    });
  }
}

TEST(ConnectPeers, NamesTheRanksThatDidNotArriveInTime) {
  MemoryStore store;
  runRanksAsThreads(5, [&](Rank rank) {
    if (rank == 1 || rank == 3) {
      return;
    }
    const auto start = Clock::now();
    const auto peers = connect(store, rank, 5, std::chrono::milliseconds(1000));
    const auto waited = Clock::now() - start;
    expectError(peers, StatusCode::kTimeout, {"group 'g'", "ranks 1, 3 did not arrive within "});
    EXPECT_GE(waited, std::chrono::milliseconds(1000));
    EXPECT_LT(waited, std::chrono::seconds(10));
  });
}

TEST(ConnectPeers, NamesAPeerThatNeverDials) {
  MemoryStore store;
  // Rank 1's process answers requests for its memory; the rank itself does nothing.
  OwnEnds own;
  ASSERT_TRUE(own.prepare(1, 2, {}).isOk());
  const RankAddress& address = own.address;
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(address)).isOk());
  expectError(connect(store, 0, 2, std::chrono::milliseconds(600)), StatusCode::kTimeout,
              {"rank 1 published an address but did not connect to rank 0"});
}

// The process of rank 1 is stopped, for example.
TEST(ConnectPeers, NamesAPeerWhoseProcessDoesNotAnswer) {
  MemoryStore store;
  auto address = addressByShmOnly();
  const auto sign = LifeSign::create({}, nullptr, 2, &address);
  const auto socket = listenUnix(address.socketName, 8);
  ASSERT_TRUE(sign.isOk() && socket.isOk());
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(address)).isOk());
  const auto peers = connect(store, 0, 2, std::chrono::milliseconds(600));
  expectError(peers, StatusCode::kTimeout, {"rank 1 (pid", "cannot be joined by shm", "no answer in time"});
  EXPECT_EQ(peers.status().message().find("SHARDWIRE_TRANSPORTS"), std::string::npos) << peers.status().message();
}

// Rank 0 joins late, and has finished while rank 1 waits for rank 2.
TEST(ConnectPeers, ARankThatJoinsLateIsNotTakenForDeadByOneThatDoesNot) {
  MemoryStore store;
  auto address = addressByShmOnly(3);
  const auto sign = LifeSign::create({}, nullptr, 3, &address);
  const auto socket = listenUnix(address.socketName, 8);
  ASSERT_TRUE(sign.isOk() && socket.isOk());
  ASSERT_TRUE(store.set(addressKey(2), encodeAddress(address)).isOk());
  runRanksAsProcesses(2, [&](Rank rank) {
    Options options;
    options.links = rank == 0 ? LinksWhen::kLazy : LinksWhen::kEager;
    const auto peers = connect(store, rank, 3, std::chrono::seconds(rank == 0 ? 30 : 1), options);
    if (rank == 0) {
      EXPECT_TRUE(peers.isOk()) << peers.status().message();
    } else {
      expectError(peers, StatusCode::kTimeout, {"rank 2 (pid", "cannot be joined by shm"});
    }
  });
}

// Shared memory was chosen and is not available: no other transport is tried in silence.
TEST(ConnectPeers, SaysHowToDoWithoutSharedMemory) {
  MemoryStore store;
  auto address = addressByShmOnly();
  const auto sign =
      LifeSign::create({}, nullptr, 2, &address);  // rank 1 is alive, but no process listens at its Unix socket
  ASSERT_TRUE(sign.isOk());
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(address)).isOk());
  expectError(connect(store, 0, 2), StatusCode::kSystem,
              {"rank 1 (pid", "cannot be joined by shm", "another network namespace", "SHARDWIRE_TRANSPORTS=^shm"});
}

TEST(ConnectPeers, EveryRankSaysWhyOneCouldNotStart) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    if (rank == 2) {
      ::setenv("SHARDWIRE_HEAP_BYTES", "nonsense", 1);
    }
    const auto start = Clock::now();
    expectError(connect(store, rank, 3), StatusCode::kInvalidArgument,
                {"rank 2 could not start", "SHARDWIRE_HEAP_BYTES=nonsense"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "nobody needs to wait for the timeout";
  });
}

TEST(ConnectPeers, EveryRankNamesThePairOnDifferentHosts) {
  MemoryStore store;
  auto far = addressByShmOnly(3);
  far.bootId = "00000000-aaaa-bbbb-cccc-dddddddddddd";
  far.host = "faraway";
  ASSERT_TRUE(store.set(addressKey(2), encodeAddress(far)).isOk());
  runRanksAsThreads(2, [&](Rank rank) {
    expectError(connect(store, rank, 3), StatusCode::kUnsupported,
                {"rank 0", "rank 2", "faraway", "different hosts", "00000000-aaaa"});
  });
}

TEST(ConnectPeers, EveryRankNamesThePairOfDifferentUsers) {
  MemoryStore store;
  auto other = addressByShmOnly();
  other.uid += 12345;
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(other)).isOk());
  expectError(connect(store, 0, 2), StatusCode::kUnsupported, {"rank 0", "rank 1", std::to_string(other.uid)});
}

TEST(ConnectPeers, RanksInOtherNetworkNamespacesGetTheReason) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    if (rank == 1 && ::unshare(CLONE_NEWNET) != 0) {
      ASSERT_TRUE(store.set("cannot", "x").isOk());
      return;
    }
    Options options;
    options.transports = "shm";
    const auto peers = connect(store, rank, 2, std::chrono::seconds(3), options);
    if (store.get("cannot", Clock::now()).isOk()) {
      return;  // no right to make a namespace here
    }
    expectError(peers, StatusCode::kUnsupported, {"rank 0 (pid", "rank 1 (pid", "network namespace"});
  });
}

TEST(ConnectPeers, AStaleAddressIsNotWaitedFor) {
  MemoryStore store;
  const auto gone = addressByShmOnly();  // no process listens there
  ASSERT_TRUE(store.set(addressKey(0), encodeAddress(gone)).isOk());
  const auto start = Clock::now();
  expectError(connect(store, 1, 2), StatusCode::kPeerFailed,
              {"rank 0 (pid", "died while the group was being made", "an earlier job"});
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(ConnectPeers, GarbageInTheStoreIsAnError) {
  MemoryStore store;
  ASSERT_TRUE(store.set(addressKey(1), "garbage").isOk());
  expectError(connect(store, 0, 2), StatusCode::kMismatch, {"rank 1", "no address"});
}

TEST(ConnectPeers, RanksThatCountDifferentlyAgreeOnTheError) {
  MemoryStore store;
  std::vector<std::string> texts(2);
  runRanksAsThreads(2, [&](Rank rank) {
    // Rank 1 expects three ranks, and does not wait for the third.
    const auto peers = connect(store, rank, 2 + rank);
    expectError(peers, StatusCode::kMismatch,
                {"do not agree on how many they are: rank 0 (pid", "world size 2, rank 1 (pid", "with 3"});
  });
}

TEST(ConnectPeers, RanksThatCountTooManyDoNotWaitForThem) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    const auto start = Clock::now();
    expectError(connect(store, rank, rank == 0 ? 2 : 5, std::chrono::seconds(60)), StatusCode::kMismatch,
                {"rank 1 (pid", "with 5"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  });
}

// Stores the value of another process with the same rank under `key`, in place of this rank's value.
class OverwritingStore final : public Store {
 public:
  OverwritingStore(MemoryStore& store, std::string key, std::string value)
      : store_(store), key_(std::move(key)), value_(std::move(value)) {}
  Status set(const std::string& key, std::string_view value) override {
    return store_.set(key, key == key_ ? value_ : value);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override { return store_.get(key, deadline); }

 private:
  MemoryStore& store_;
  std::string key_;
  std::string value_;
};

TEST(ConnectPeers, TwoProcessesOfOneRankAreNamed) {
  MemoryStore memory;
  auto other = addressByShmOnly();
  other.host = "elsewhere";
  OverwritingStore store(memory, addressKey(1), encodeAddress(other));
  expectError(connect(store, 1, 2), StatusCode::kMismatch,
              {"two processes call themselves rank 1", "on host elsewhere"});
}

// All ranks take the roster: the error names the process that is not in the roster.
TEST(ConnectPeers, TwoProcessesOfOneRankAmongManyAreNamed) {
  MemoryStore memory;
  auto other = addressByShmOnly(6);
  other.host = "elsewhere";
  runRanksAsThreads(6, [&](Rank rank) {
    OverwritingStore overwriting(memory, addressKey(3), encodeAddress(other));
    Store& store = rank == 3 ? static_cast<Store&>(overwriting) : memory;
    expectError(connect(store, rank, 6), StatusCode::kMismatch,
                {"two processes call themselves rank 3", "on host elsewhere"});
  });
}

// One number twice, and so one number is missing: no rank waits for the missing number until the timeout.
TEST(ConnectPeers, TwoProcessesOfOneRankAreNamedWhileARankIsMissing) {
  for (const int size : {3, 6}) {
    MemoryStore store;
    runRanksAsProcesses(size, [&](Rank place) {
      const Rank rank = place == size - 1 ? 1 : place;
      while (rank != place && !store.get(addressKey(1), Clock::now()).isOk()) {
        ::sched_yield();
      }
      expectError(connect(store, rank, size, std::chrono::seconds(60)), StatusCode::kMismatch,
                  {"two processes call themselves rank 1"});
    });
  }
}

TEST(ConnectPeers, ManyGroupsComeAndGo) {
  std::array<MemoryStore, 20> stores;
  runRanksAsProcesses(2, [&](Rank rank) {
    for (MemoryStore& store : stores) {
      const auto peers = connect(store, rank, 2);
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
    }
  });
}

// ---- one store, one group after another

void expectOneValueOnAll(Communicator& group) {
  std::int64_t value = group.rank() + 1;
  auto work = group.allReduce(TensorView::contiguous(&value, DType::kInt64, {1}), ReduceOp::kSum);
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status done = (*work)->wait();
  EXPECT_TRUE(done.isOk()) << done.message();
  EXPECT_EQ(value, group.worldSize() * (group.worldSize() + 1) / 2);
}

// No rank waits for the others before it leaves or joins again: a rank may be a round ahead.
void comeAndGo(int worldSize, LinksWhen links, int numRounds, bool isWorking) {
  MemoryStore store;
  Options options;
  options.links = links;
  runRanksAsProcesses(worldSize, [&](Rank rank) {
    for (int round = 0; round < numRounds; ++round) {
      auto group = Communicator::create(store, rank, worldSize, options, "again");
      ASSERT_TRUE(group.isOk()) << "round " << round << ": " << group.status().message();
      if (isWorking) {
        expectOneValueOnAll(**group);
      }
    }
  });
}

TEST(OneStoreForMany, ATwoRankGroupIsMadeAgainAndAgain) {
  comeAndGo(2, LinksWhen::kAuto, 40, true);
}

TEST(OneStoreForMany, AGroupWithARosterIsMadeAgainAndAgain) {
  comeAndGo(6, LinksWhen::kAuto, 10, true);
}

TEST(OneStoreForMany, RanksThatJoinLateMayBeARoundAhead) {
  comeAndGo(6, LinksWhen::kLazy, 10, false);
}

TEST(OneStoreForMany, AnAttemptThatFailedIsNotInTheWayOfTheNext) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const auto missed = connect(store, rank, 2 + rank);
    expectError(missed, StatusCode::kMismatch, {"do not agree on how many they are"});
    const auto peers = connect(store, rank, 2);
    EXPECT_TRUE(peers.isOk()) << peers.status().message();
  });
}

TEST(OneStoreForMany, WhoDoesNotComeAgainIsMissed) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const auto peers = connect(store, rank, 2);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    if (rank == 0) {
      noteEndOfGroup();
      expectError(connect(store, 0, 2, std::chrono::milliseconds(300)), StatusCode::kTimeout,
                  {"rank 1 did not join group 2 of this store"});
    }
  });
}

TEST(OneStoreForMany, TheRoundIsFoundWithFewQuestions) {
  runRanksAsProcesses(1, [&](Rank) {
    MemoryStore memory;
    EXPECT_EQ(*nextRound(memory, 3), 0);
    const auto address = makeAddress();
    ASSERT_TRUE(address.isOk());
    for (int round = 0; round < 1000; ++round) {
      ASSERT_TRUE(RoundStore(memory, round).set(addressKey(3), encodeAddress(*address)).isOk());
    }
    EXPECT_EQ(*nextRound(memory, 3), 0);  // no group of this process has ended: the process does not ask
    noteEndOfGroup();
    AskedStore asked(memory);
    EXPECT_EQ(*nextRound(asked, 3), 1000);
    EXPECT_LT(asked.numAsked, 60);
    EXPECT_EQ(*nextRound(memory, 2), 0);  // another rank's addresses
    auto others = *address;
    others.process = *makeRandomId();
    ASSERT_TRUE(memory.set(addressKey(2), encodeAddress(others)).isOk());
    EXPECT_EQ(*nextRound(memory, 2), 0);  // another process's
  });
}

// ---- one store, one attempt of a job after another

Options ofKeptStore(const char* transports = "") {
  Options options;
  options.storeIsKept = true;
  options.transports = transports;
  return options;
}

void expectMade(Store& store, Rank rank, int worldSize, const Options& options) {
  auto group = Communicator::create(store, rank, worldSize, options, "attempt");
  ASSERT_TRUE(group.isOk()) << "rank " << rank << ": " << group.status().message();
  expectOneValueOnAll(**group);
}

// An earlier attempt of `before` ranks, all dead by now; then an attempt of `after` ranks. The last of these ranks has
// read the earlier attempt's name, and has published its address under the earlier name, before rank 0 starts.
void startAnew(int before, int after, const Options& options) {
  MemoryStore store;
  runRanksAsProcesses(before, [&](Rank rank) { expectMade(store, rank, before, options); });
  const auto earlier = store.get("shardwire/attempt", Clock::now());
  ASSERT_TRUE(earlier.isOk());
  ByteReader reader(*earlier);
  AttemptStore ofEarlier(store, Attempt{readId(reader), false});
  const Rank last = after - 1;
  const auto old = ofEarlier.get(addressKey(last), Clock::now());
  runRanksAsProcesses(after, [&](Rank rank) {
    while (rank == 0) {
      const auto now = ofEarlier.get(addressKey(last), Clock::now() + std::chrono::seconds(30));
      ASSERT_TRUE(now.isOk()) << now.status().message();
      if (!old.isOk() || *now != *old) {
        break;
      }
      ::sched_yield();
    }
    expectMade(store, rank, after, options);
  });
}

TEST(OneStoreForManyAttempts, AsManyRanks) {
  startAnew(3, 3, ofKeptStore());
}

TEST(OneStoreForManyAttempts, MoreRanksThatTakeARoster) {
  startAnew(2, 6, ofKeptStore());
}

TEST(OneStoreForManyAttempts, FewerRanksOverWires) {
  startAnew(6, 2, ofKeptStore("tcp"));
}

TEST(OneStoreForManyAttempts, WhyAnEarlierOneFailedIsForgotten) {
  MemoryStore store;
  for (int attempt = 0; attempt < 3; ++attempt) {
    runRanksAsProcesses(3, [&](Rank rank) { expectMade(store, rank, 3, ofKeptStore()); });
    const auto named = store.get("shardwire/attempt", Clock::now());
    ASSERT_TRUE(named.isOk());
    ByteReader reader(*named);
    AttemptStore ofAttempt(store, Attempt{readId(reader), true});
    FailureBoard(ofAttempt).write({StatusCode::kPeerFailed, "rank 2 died"});
  }
}

// As a process of another host, for which the attempt's clock means nothing.
class FarStore final : public Store {
 public:
  explicit FarStore(Store& store) : store_(store) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(key, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    auto value = store_.get(key, deadline);
    if (value.isOk() && key == "shardwire/attempt") {
      ++(*value)[value->size() / 2];  // of the boot id
    }
    return value;
  }

 private:
  Store& store_;
};

// The keys of the attempt that rank 0 has named, or is about to name.
AttemptStore namedAttempt(Store& store) {
  const auto named = store.get("shardwire/attempt", Clock::now() + std::chrono::seconds(30));
  SW_CHECK(named.isOk());
  ByteReader reader(*named);
  return {store, Attempt{readId(reader), true}};
}

constexpr std::chrono::seconds kLongTimeout{60};
constexpr std::chrono::seconds kInTime{20};

TEST(OneStoreForManyAttempts, ARankThatDoesNotKnowWhenTheAttemptWasNamedLearnsWhyAnotherCouldNotStart) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    FarStore far(store);
    if (rank == 2) {
      ASSERT_TRUE(namedAttempt(store).get(addressKey(1), Clock::now() + kLongTimeout).isOk());
    }
    const auto start = Clock::now();
    const auto peers = connect(rank == 1 ? static_cast<Store&>(far) : store, rank, 3, kLongTimeout,
                               ofKeptStore(rank == 2 ? "nosuch" : ""));
    expectError(peers, StatusCode::kInvalidArgument, {"rank 2 could not start"});
    EXPECT_LT(Clock::now() - start, kInTime);
  });
}

// Rank 0 arrived, and died before rank 1 looked. Rank 1 leaves no guess on the board, where rank 0 would take the guess
// for the reason.
TEST(OneStoreForManyAttempts, ARankThatDoesNotKnowWhenTheAttemptWasNamedNamesTheMissingRank) {
  MemoryStore store;
  runRanksAsProcesses(1, [&](Rank) {
    const auto attempt = findAttempt(store, 0, Clock::now());
    ASSERT_TRUE(attempt.isOk());
    AttemptStore ofAttempt(store, *attempt);
    ASSERT_TRUE(ofAttempt.set(addressKey(0), encodeAddress(addressByShmOnly(3))).isOk());
    FarStore far(store);
    expectError(connect(far, 1, 3, std::chrono::milliseconds(300), ofKeptStore()), StatusCode::kTimeout,
                {"rank 2 did not arrive"});
    EXPECT_FALSE(FailureBoard(ofAttempt).read().has_value());
  });
}

// Rank 1 has seen rank 0 alive, so rank 0 is no process of an earlier attempt.
TEST(OneStoreForManyAttempts, ARankThatDoesNotKnowWhenTheAttemptWasNamedNoticesTheDeathOfRank0) {
  MemoryStore store;
  runRanksAsProcesses(
      2,
      [&](Rank rank) {
        if (rank == 1) {
          FarStore far(store);
          const auto start = Clock::now();
          expectError(connect(far, 1, 2, kLongTimeout, ofKeptStore()), StatusCode::kPeerFailed,
                      {"rank 0 (pid", "died"});
          EXPECT_LT(Clock::now() - start, kInTime);
          return;
        }
        const auto attempt = findAttempt(store, 0, Clock::now());
        ASSERT_TRUE(attempt.isOk());
        RankAddress address = addressByShmOnly();
        const auto sign = listenUnix(address.lifeName, 1);
        ASSERT_TRUE(sign.isOk());
        ASSERT_TRUE(AttemptStore(store, *attempt).set(addressKey(0), encodeAddress(address)).isOk());
        ASSERT_TRUE(WaitLimit(Clock::now() + kLongTimeout).waitFor(*sign, POLLIN, "somebody to watch").isOk());
        ::kill(::getpid(), SIGKILL);
      },
      kLongTimeout, {0});
}

// The first process that calls itself rank 0 gives up when the second has named the attempt; then rank 1 comes.
TEST(OneStoreForManyAttempts, TwoProcessesOfRank0DoNotTakeTurns) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank place) {
    if (place == 0) {
      const auto start = Clock::now();
      expectError(connect(store, 0, 2, kLongTimeout, ofKeptStore()), StatusCode::kMismatch,
                  {"two processes call themselves rank 0"});
      EXPECT_LT(Clock::now() - start, kInTime);
      EXPECT_TRUE(store.set("gave up", "").isOk());
      return;
    }
    ASSERT_TRUE(place == 1 ? store.get("shardwire/attempt", Clock::now() + kLongTimeout).isOk()
                           : store.get("gave up", Clock::now() + kLongTimeout).isOk());
    expectMade(store, place - 1, 2, ofKeptStore());
  });
}

TEST(OneStoreForManyAttempts, ARankThatDoesNotKnowWhenTheAttemptWasNamedTakesTheRoster) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    FarStore far(store);
    for (int round = 0; round < 3; ++round) {
      expectMade(rank == 0 ? static_cast<Store&>(store) : far, rank, 3, ofKeptStore());
    }
  });
}

}  // namespace
}  // namespace shardwire::internal
