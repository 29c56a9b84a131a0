#include "backend/bootstrap/connect.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <string>
#include <thread>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/transport/shm/shm_handshake.h"
#include "backend/transport/shm/unix_socket.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/memory_store.h"

namespace shardwire::internal {
namespace {

using testing::MemoryStore;
using testing::runRanksAsProcesses;
using testing::runRanksAsThreads;

Result<Peers> connect(Store& store, Rank rank, int worldSize, Duration timeout = std::chrono::seconds(10), const Options& options = {}) {
  return connectPeers(store, rank, worldSize, options, Clock::now() + timeout, "g");
}

// The address of a rank that no wire reaches.
RankAddress addressByShmOnly() {
  auto address = makeAddress();
  SW_CHECK(address.isOk());
  for (std::size_t kind = 1; kind < address->transports.size(); ++kind) {
    address->transports[kind].whyNot = "not on this one";
  }
  return *address;
}

void expectError(const Result<Peers>& peers, StatusCode code, const std::vector<std::string>& words) {
  ASSERT_FALSE(peers.isOk());
  EXPECT_EQ(peers.status().code(), code) << peers.status().message();
  for (const std::string& word : words) {
    EXPECT_NE(peers.status().message().find(word), std::string::npos) << "no '" << word << "' in: " << peers.status().message();
  }
}

TEST(ConnectPeers, AWorldOfOneNeedsNobody) {
  MemoryStore store;
  const auto peers = connect(store, 0, 1);
  ASSERT_TRUE(peers.isOk()) << peers.status().message();
  EXPECT_EQ(store.numSets(), 0U);
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

TEST(ConnectPeers, NamesTheRanksThatDidNotArriveInTime) {
  MemoryStore store;
  runRanksAsThreads(5, [&](Rank rank) {
    if (rank == 1 || rank == 3) {
      return;
    }
    const auto start = Clock::now();
    const auto peers = connect(store, rank, 5, std::chrono::milliseconds(1000));
    const auto waited = Clock::now() - start;
    expectError(peers, StatusCode::kTimeout, {"group 'g'", "ranks 1, 3 did not arrive within 1 s"});
    EXPECT_GE(waited, std::chrono::milliseconds(1000));
    EXPECT_LT(waited, std::chrono::seconds(10));
  });
}

TEST(ConnectPeers, NamesAPeerThatNeverDials) {
  MemoryStore store;
  const auto address = addressByShmOnly();
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(address)).isOk());
  expectError(connect(store, 0, 2, std::chrono::milliseconds(600)), StatusCode::kTimeout,
              {"rank 1 published an address but did not connect to rank 0"});
}

TEST(ConnectPeers, EveryRankSaysWhyOneCouldNotStart) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    if (rank == 2) {
      ::setenv("SHARDWIRE_HEAP_BYTES", "nonsense", 1);
    }
    const auto start = Clock::now();
    expectError(connect(store, rank, 3), StatusCode::kInvalidArgument, {"rank 2 could not start", "SHARDWIRE_HEAP_BYTES=nonsense"});
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5)) << "nobody needs to wait for the timeout";
  });
}

TEST(ConnectPeers, EveryRankNamesThePairOnDifferentHosts) {
  MemoryStore store;
  auto far = addressByShmOnly();
  far.bootId = "00000000-aaaa-bbbb-cccc-dddddddddddd";
  far.host = "faraway";
  ASSERT_TRUE(store.set(addressKey(2), encodeAddress(far)).isOk());
  runRanksAsThreads(2, [&](Rank rank) {
    expectError(connect(store, rank, 3), StatusCode::kUnsupported, {"rank 0", "rank 2", "faraway", "different hosts", "00000000-aaaa"});
  });
}

TEST(ConnectPeers, EveryRankNamesThePairOfDifferentUsers) {
  MemoryStore store;
  auto other = addressByShmOnly();
  other.uid += 12345;
  ASSERT_TRUE(store.set(addressKey(1), encodeAddress(other)).isOk());
  expectError(connect(store, 0, 2), StatusCode::kUnsupported, {"rank 0", "rank 1", std::to_string(other.uid)});
}

TEST(ConnectPeers, RanksInOtherNetworkNamespacesAreToldSo) {
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
  const auto gone = addressByShmOnly();  // nobody listens there
  ASSERT_TRUE(store.set(addressKey(0), encodeAddress(gone)).isOk());
  const auto start = Clock::now();
  expectError(connect(store, 1, 2), StatusCode::kUnsupported, {"rank 0 (pid", "rank 1 (pid", "ECONNREFUSED", "has ended"});
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
    // Rank 1 believes in three ranks, of which the third has its address in the store already.
    if (rank == 1) {
      ASSERT_TRUE(store.set(addressKey(2), encodeAddress(addressByShmOnly())).isOk());
    }
    const auto peers = connect(store, rank, 2 + rank);
    expectError(peers, StatusCode::kMismatch, {"rank 1 was started with world size 3, rank 0 with 2"});
  });
}

TEST(ConnectPeers, ARankThatDiesOnTheWayIsNoticed) {
  MemoryStore store;
  runRanksAsProcesses(
      2,
      [&](Rank rank) {
        if (rank == 1) {
          // Connects, says nothing, dies.
          const auto address = decodeAddress(*store.get(addressKey(0), Clock::now() + std::chrono::seconds(10)));
          ASSERT_TRUE(store.set(addressKey(1), encodeAddress(addressByShmOnly())).isOk());
          const auto socket = dialUnix(address->socketName, Clock::now() + std::chrono::seconds(10));
          ASSERT_TRUE(socket.isOk());
          ::kill(::getpid(), SIGKILL);
        }
        expectError(connect(store, rank, 2, std::chrono::milliseconds(800)), StatusCode::kTimeout, {"rank 1", "did not connect to rank 0"});
      },
      std::chrono::seconds(20), {1});
}

// Strangers at the socket (no token, no words, garbage) do not disturb the ranks that belong there.
TEST(ConnectPeers, StrangersAreTurnedAway) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    if (rank == 1) {
      const auto address = decodeAddress(*store.get(addressKey(0), Clock::now() + std::chrono::seconds(10)));
      ASSERT_TRUE(address.isOk());
      const Deadline deadline = Clock::now() + std::chrono::seconds(10);
      {
        const auto silent = dialUnix(address->socketName, deadline);
        ASSERT_TRUE(silent.isOk());
      }
      auto stranger = ShmEndpoint::create(1, 2, RandomId{{1, 2}}, "elsewhere", {});
      ASSERT_TRUE(stranger.isOk());
      auto socket = dialUnix(address->socketName, deadline);
      ASSERT_TRUE(socket.isOk());
      // Rank 0 accepts only once it has all addresses.
      std::thread late([&] {
        const auto peers = connect(store, 1, 2);
        EXPECT_TRUE(peers.isOk()) << peers.status().message();
      });
      const auto refused = dialShm(std::move(*socket), *stranger, 0, deadline);
      EXPECT_EQ(refused.status().code(), StatusCode::kMismatch);
      EXPECT_NE(refused.status().message().find("token"), std::string::npos) << refused.status().message();
      late.join();
      return;
    }
    const auto peers = connect(store, rank, 2);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
  });
}

TEST(ConnectPeers, AnotherReleaseIsRefusedByVersion) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    if (rank == 0) {
      expectError(connect(store, 0, 2), StatusCode::kUnsupported, {"version 7", "same release"});
      return;
    }
    ASSERT_TRUE(store.set(addressKey(1), encodeAddress(addressByShmOnly())).isOk());
    const Deadline deadline = Clock::now() + std::chrono::seconds(10);
    const auto address = decodeAddress(*store.get(addressKey(0), deadline));
    const auto socket = dialUnix(address->socketName, deadline);
    ASSERT_TRUE(socket.isOk());
    ASSERT_TRUE(sendUnix(*socket,
                         std::string_view("WSHM\x07\0\0\0\x01"
                                          "more",
                                          13),
                         {}, deadline)
                    .isOk());
    const auto answer = receiveUnix(*socket, deadline);
    ASSERT_TRUE(answer.isOk()) << answer.status().message();
    EXPECT_NE(answer->bytes.find("version 7"), std::string::npos);
  });
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

}  // namespace
}  // namespace shardwire::internal
