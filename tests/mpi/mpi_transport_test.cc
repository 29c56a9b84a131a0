// The contract over MPI, and what is special to it. Every test runs in each process that mpirun started: see run_mpi.py.
#include <signal.h>
#include <unistd.h>

#include "backend/transport/endpoint.h"
#include "backend/transport/mpi/mpi_process.h"
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"

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

const auto kFixtures =
    ::testing::Values(TransportFixture{"Mpi", false, overMpi(), true}, TransportFixture{"SmallLanes", false, smallLanes(), true});
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

// MPI may copy what is under way inside of one look at it, while whatever else this rank does waits.
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
          EXPECT_LE(most, kSize / 4);
        });
    ownPeers = nullptr;
  });
}

// Run by itself, on two ranks, by an mpirun that lets the others live on when a rank dies. The group initialises MPI; the process ends
// without finalising it.
TEST(MpiDeath, IsNoticedWithinMillisecondsAndNobodyHangs) {
  const auto store = makeStore();
  const Rank rank = launchedRank();
  auto peers = internal::connectPeers(*store, rank, 2, overMpi(), Clock::now() + std::chrono::seconds(20), "death");
  ASSERT_TRUE(peers.isOk()) << peers.status().message();
  ownPeers = &*peers;
  Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
  meet(connection);
  if (rank == 1) {
    const auto now = Clock::now();
    sendFrame(connection, Lane::kControl, &now, sizeof(now));
    pollWires();
    ::kill(::getpid(), SIGKILL);
  }
  // More than MPI takes without a receiver.
  for (std::span<std::byte> room; !(room = connection.reserve(Lane::kBulk, 1024, 1 << 20)).empty();) {
    connection.commit(Lane::kBulk, room.size());
  }
  const auto frame = awaitFrame(connection, Lane::kControl);
  Deadline killed;
  ASSERT_EQ(frame.size(), sizeof(killed));
  std::memcpy(&killed, frame.data(), sizeof(killed));
  connection.release(Lane::kControl);
  Status failure;
  awaitFailure(connection, &failure);
  EXPECT_LT(Clock::now() - killed, std::chrono::seconds(10));  // not the 20 s of a timeout; the link is looked at every 5 ms
  expectFailure(failure, 1, "died");
  EXPECT_EQ(connection.health(), failure);
  ownPeers = nullptr;
  const auto start = Clock::now();
  peers->connections.clear();
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
}

}  // namespace
}  // namespace shardwire::testing
