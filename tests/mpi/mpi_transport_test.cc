// The contract over MPI, and tests of MPI alone. Every test runs in each process started by mpirun: see run_mpi.py.
// First the contract and the moves of one look, then fetches under way when an owner gives up, then the last frames of
// a rank that leaves, then pairs left behind, and at last the death of a rank.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "backend/transport/endpoint.h"
#include "backend/transport/mpi/mpi_process.h"
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::testing {
namespace {

Options overMpi() {
  Options options;
  options.transports = "mpi";
  return options;
}

Options smallLanes() {
  Options options = overMpi();
  options.ringBytes = std::size_t{16} << 10;
  options.inlineBytes = 0;
  return options;
}

const auto kFixtures = ::testing::Values(TransportFixture{"Mpi", false, overMpi(), true},
                                         TransportFixture{"SmallLanes", false, smallLanes(), true});
INSTANTIATE_TEST_SUITE_P(Mpi, TransportContract, kFixtures, [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Mpi, WireContract, kFixtures, [](const auto& info) { return info.param.name; });

TEST(MpiTransport, GroupsOfTheSameRanksAreIndependent) {
  const auto first = makeStore();
  const auto second = makeStore();
  runLaunchedRank(2, [&](Rank rank) {
    const auto connect = [&](Store& store) {
      return internal::connectPeers(store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "two");
    };
    auto a = connect(*first);
    auto b = connect(*second);
    ASSERT_TRUE(a.isOk() && b.isOk());
    Connection& inA = *a->connections[static_cast<std::size_t>(1 - rank)];
    Connection& inB = *b->connections[static_cast<std::size_t>(1 - rank)];
    const auto takeByte = [&](Peers& peers, Connection& connection) {
      ownPeers = &peers;
      const auto frame = awaitFrame(connection, Lane::kBulk);
      return frame.empty() ? '?' : static_cast<char>(frame[0]);
    };
    sendFrame(inA, Lane::kBulk, "a", 1);
    sendFrame(inB, Lane::kBulk, "b", 1);
    EXPECT_EQ(takeByte(*b, inB), 'b');
    EXPECT_EQ(takeByte(*a, inA), 'a');
    meet(inA);
    a->connections.clear();
    ownPeers = &*b;
    meet(inB);
    EXPECT_TRUE(inB.health().isOk()) << inB.health().message();
    meet(inB);
    ownPeers = nullptr;
  });
}

// MPI may copy messages under way inside of one look, while all other work of this rank waits.
TEST(MpiTransport, AnyLookMovesAFewMessagesOnly) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  constexpr std::size_t kSize = 512 * kStep;
  const auto store = makeStore();
  runLaunchedRank(2, [&](Rank rank) {
    auto peers = internal::connectPeers(*store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "long");
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    ownPeers = &*peers;
    std::vector<std::byte> memory;
    withExposed(
        rank, *peers,
        [&] {
          memory.assign(kSize, std::byte{7});
          return std::span(memory);
        },
        [&](Connection& connection, const Exposed& exposed) {
          ASSERT_TRUE(isFetched(exposed));
          std::vector<std::byte> copy(kSize);
          FetchCount count;
          const MemoryRun all{copy.data(), exposed.address.value, kSize};
          startFetch(connection, exposed, {&all, 1}, &count);
          std::size_t most = 0;
          for (std::size_t arrived = 0, before = 0; count.pending > 0 && connection.health().isOk(); before = arrived) {
            pollWires();
            while (arrived < kSize && copy[arrived + kStep - 1] == std::byte{7}) {
              arrived += kStep;
            }
            most = std::max(most, arrived - before);
          }
          EXPECT_EQ(count.pending, 0U) << connection.health().message();
          EXPECT_LE(most, kSize / 8);
        });
    ownPeers = nullptr;
  });
}

// The owner gives up while a message from its tensor is under way to a reader paused by the machine, and the owner's
// caller writes to the tensor. MPI copies the bytes when the reader continues: whatever values the bytes have then, the
// fetch must not succeed.
TEST(MpiTransport, AFetchDoesNotEndWithWhatTheOwnerWroteAfterItStopped) {
  // One message; then so many messages as to leave some unstarted when the owner gives up.
  for (const std::size_t size : {std::size_t{1} << 20, std::size_t{64} << 20}) {
    const auto store = makeStore();
    runLaunchedRank(2, [&](Rank rank) {
      auto peers =
          internal::connectPeers(*store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "paused");
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
      ownPeers = &*peers;
      Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
      std::vector<std::byte> memory(size, std::byte{static_cast<unsigned char>(rank == 0 ? 1 : 0)});
      const auto pollFor = [](Duration duration) {
        for (const auto until = Clock::now() + duration; Clock::now() < until;) {
          pollWires();
        }
      };
      if (rank == 0) {
        Exposed exposed{{}, Reach::kNone, size};
        exposed.reach = connection.expose(memory.data(), size, &exposed.address);
        sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
        const auto frame = awaitFrame(connection, Lane::kControl);
        pid_t reader = 0;
        ASSERT_EQ(frame.size(), sizeof(reader));
        std::memcpy(&reader, frame.data(), sizeof(reader));
        connection.release(Lane::kControl);
        testing::awaitStopped(reader);
        pollFor(std::chrono::milliseconds(50));  // takes the request, and starts to answer
        static_cast<void>(connection.stopFetches());
        std::fill(memory.begin(), memory.end(), std::byte{2});
        ASSERT_EQ(::kill(reader, SIGCONT), 0);
      } else {
        const auto frame = awaitFrame(connection, Lane::kControl);
        Exposed exposed;
        ASSERT_EQ(frame.size(), sizeof(exposed));
        std::memcpy(&exposed, frame.data(), sizeof(exposed));
        connection.release(Lane::kControl);
        ASSERT_TRUE(isFetched(exposed));
        FetchCount count;
        const MemoryRun all{memory.data(), exposed.address.value, size};
        startFetch(connection, exposed, {&all, 1}, &count);
        const pid_t self = ::getpid();
        sendFrame(connection, Lane::kControl, &self, sizeof(self));
        ::kill(self, SIGSTOP);
        for (const auto until = Clock::now() + std::chrono::seconds(1); count.pending > 0 && Clock::now() < until;) {
          pollWires();
        }
        EXPECT_TRUE(connection.health().isOk()) << connection.health().message();
        if (count.pending == 0) {
          EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{1}), static_cast<std::ptrdiff_t>(size))
              << "the fetch ended with bytes that the owner never exposed";
        }
        for (const auto start = Clock::now(); !connection.stopFetches(); pollWires()) {
          ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "MPI does not end what is under way";
        }
      }
      meet(connection);
      if (rank == 0) {
        new std::vector<std::byte>(std::move(memory));  // MPI may read the memory as long as the process lives
      }
      ownPeers = nullptr;
    });
  }
}

// Between hosts the sender's process takes part in sending a long message. This rank ends its connections while the
// peer computes, and then makes no call to MPI any more. Polls of the peer's progress thread must be enough.
TEST(MpiTransport, LastFramesArriveThoughThePeerTakesThemLate) {
  const auto store = makeStore();
  runLaunchedRank(2, [&](Rank rank) {
    auto peers = internal::connectPeers(*store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "late");
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    ownPeers = &*peers;
    Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
    meet(connection);
    if (rank == 0) {
      const std::size_t size = connection.maxFrameBytes(Lane::kBulk) / 3;
      int number = 0;
      for (std::span<std::byte> room; !(room = connection.reserve(Lane::kBulk, size, size)).empty(); ++number) {
        std::memcpy(room.data(), &number, sizeof(number));
        connection.commit(Lane::kBulk, size);
      }
      peers->connections.clear();
      ASSERT_TRUE(store->set("sent", std::to_string(number)).isOk());
      ASSERT_TRUE(store->get("received", Clock::now() + std::chrono::seconds(60)).isOk());
    } else {
      for (const auto until = Clock::now() + std::chrono::seconds(3); Clock::now() < until;) {
        pollWires();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      const auto sent = store->get("sent", Clock::now() + std::chrono::seconds(60));
      ASSERT_TRUE(sent.isOk()) << sent.status().message();
      for (int number = 0; number < std::stoi(*sent); ++number) {
        const auto frame = awaitFrame(connection, Lane::kBulk);
        int found = -1;
        std::memcpy(&found, frame.data(), std::min(frame.size(), sizeof(found)));
        EXPECT_EQ(found, number) << "of " << *sent;
        if (found != number) {
          break;
        }
        connection.release(Lane::kBulk);
      }
      ASSERT_TRUE(store->set("received", "").isOk());
      Status failure;
      awaitFailure(connection, &failure);
      expectFailure(failure, 0, "left the group");
    }
    ownPeers = nullptr;
  });
}

// Runs alone, on two ranks, before any other test made the pair. Rank 1 makes its first call when rank 0 has given the
// pair up twice.
TEST(MpiPairs, ThatWereLeftBehindFailSoonByTheFirstReasonAndAreUsedOnceTheyEnd) {
  const auto store = makeStore();
  runLaunchedRank(2, [&](Rank rank) {
    const auto process = internal::MpiProcess::instance();
    ASSERT_TRUE(process.isOk()) << process.status().message();
    const auto pairWithin = [&](Duration limit, const std::function<bool()>& isWanted) {
      return (*process)->pairWith(static_cast<int>(1 - rank), isWanted, Clock::now() + limit);
    };
    constexpr Duration kLong = std::chrono::seconds(60);
    if (rank == 0) {
      const auto first = pairWithin(kLong, [] { return false; });
      EXPECT_EQ(first.status().code(), StatusCode::kPeerFailed) << first.status().message();
      const auto start = Clock::now();
      const auto second = pairWithin(kLong, nullptr);
      EXPECT_LT(Clock::now() - start, kLong / 4);
      EXPECT_EQ(second.status().code(), StatusCode::kPeerFailed);
      EXPECT_NE(second.status().message().find("has not ended yet: the peer closed the connection"), std::string::npos)
          << second.status().message();
      ASSERT_TRUE(store->set("given up", "").isOk());
    } else {
      ASSERT_TRUE(store->get("given up", Clock::now() + kLong).isOk());
    }
    const auto pair = pairWithin(kLong, nullptr);
    ASSERT_TRUE(pair.isOk()) << pair.status().message();
    EXPECT_NE(*pair, nullptr);
  });
}

// Runs alone, on two ranks, by an mpirun that lets the other ranks live when a rank dies. The group initialises MPI;
// the process ends without finalising MPI.
TEST(MpiDeath, IsNoticedWithinMillisecondsAndNobodyHangs) {
  const auto store = makeStore();
  const Rank rank = launchedRank();
  auto peers = internal::connectPeers(*store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "death");
  ASSERT_TRUE(peers.isOk()) << peers.status().message();
  ownPeers = &*peers;
  Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
  meet(connection);
  if (rank == 1) {
    // Not by a frame: MPI may keep the frame of a rank that dies at once.
    ASSERT_TRUE(store->set("killed at", std::to_string(Clock::now().time_since_epoch().count())).isOk());
    ::kill(::getpid(), SIGKILL);
  }
  // More than MPI takes without a receiver.
  for (std::span<std::byte> room; !(room = connection.reserve(Lane::kBulk, 1024, 1 << 20)).empty();) {
    connection.commit(Lane::kBulk, room.size());
  }
  const auto text = store->get("killed at", Clock::now() + std::chrono::seconds(20));
  ASSERT_TRUE(text.isOk()) << text.status().message();
  const Deadline killed{Clock::duration(std::stoll(*text))};
  Status failure;
  awaitFailure(connection, &failure);
  EXPECT_LT(Clock::now() - killed,
            std::chrono::seconds(10));  // not the 20 s of a timeout; the link is looked at every 5 ms
  expectFailure(failure, 1, "died");
  EXPECT_EQ(connection.health(), failure);
  ownPeers = nullptr;
  const auto start = Clock::now();
  peers->connections.clear();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace shardwire::testing
