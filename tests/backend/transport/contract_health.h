// The part of the contract about peers that die or leave. Included by contract.h.
#pragma once

#include <signal.h>
#include <unistd.h>

namespace shardwire::testing {

// Polls until the peer counts as failed; the time that took.
inline Duration awaitFailure(Connection& connection, Status* failure) {
  const auto start = Clock::now();
  while ((*failure = connection.health()).isOk() && Clock::now() - start < std::chrono::seconds(10)) {
    std::this_thread::yield();
  }
  return Clock::now() - start;
}

inline void expectFailure(const Status& failure, Rank peer, const std::string& words) {
  EXPECT_EQ(failure.code(), StatusCode::kPeerFailed);
  EXPECT_NE(failure.message().find("rank " + std::to_string(peer)), std::string::npos) << failure.message();
  EXPECT_NE(failure.message().find(words), std::string::npos) << failure.message();
}

TEST_P(TransportContract, KilledPeerIsNoticedWithinMilliseconds) {
  if (!GetParam().forked) {
    GTEST_SKIP() << "a thread cannot be killed";
  }
  for (const bool holds : {true, false}) {
    run(2,
        [&](Rank rank, Peers& peers) {
          Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
          if (rank == 1) {
            if (holds) {
              peers.doorbell->holdLiveness();
            }
            // Memory that the kernel must free before it closes the socket.
            std::vector<char> memory(holds ? std::size_t{256} << 20 : 1, 1);
            const auto now = Clock::now();
            sendFrame(connection, Lane::kControl, &now, sizeof(now));
            ::kill(::getpid(), SIGKILL);
          }
          const auto frame = awaitFrame(connection, Lane::kControl);
          ASSERT_EQ(frame.size(), sizeof(Deadline));
          Deadline killed;
          std::memcpy(&killed, frame.data(), sizeof(killed));
          connection.release(Lane::kControl);
          Status failure;
          awaitFailure(connection, &failure);
          const auto late = Clock::now() - killed;
          expectFailure(failure, 1, "died");
          EXPECT_LT(late, std::chrono::milliseconds(50)) << (holds ? "with" : "without") << " liveness mark";
          EXPECT_EQ(connection.health(), failure);
          // What is mapped stays mapped.
          EXPECT_TRUE(connection.peek(Lane::kControl).empty());
          const auto room = connection.reserve(Lane::kBulk, 8, 8);
          ASSERT_FALSE(room.empty());
          connection.commit(Lane::kBulk, 8);
        },
        {1});
  }
}

TEST_P(TransportContract, AnEndedThreadThatHeldTheLivenessMarkIsADeadPeer) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    if (rank == 1) {
      meet(connection);
      std::thread([&] { peers.doorbell->holdLiveness(); }).join();  // without leave(): as if it had crashed
      ASSERT_FALSE(awaitFrame(connection, Lane::kPoint).empty());
      connection.release(Lane::kPoint);
    } else {
      EXPECT_TRUE(connection.health().isOk());
      meet(connection);
      Status failure;
      EXPECT_LT(awaitFailure(connection, &failure), std::chrono::seconds(5));
      expectFailure(failure, 1, "died");
      sendFrame(connection, Lane::kPoint, "x", 1);
    }
  });
}

TEST_P(TransportContract, OrderlyLeaveIsTold) {
  run(3, [](Rank rank, Peers& peers) {
    if (rank == 1) {
      std::thread engine([&] {
        peers.doorbell->holdLiveness();
        for (const std::size_t peer : {0, 2}) {
          sendFrame(*peers.connections[peer], Lane::kBulk, "last", 4);
        }
        peers.doorbell->leave();
      });
      engine.join();
      return;
    }
    Connection& leaver = *peers.connections[1];
    Status failure;
    awaitFailure(leaver, &failure);
    expectFailure(failure, 1, "left the group");
    // What it sent before is still there.
    const auto frame = leaver.peek(Lane::kBulk);
    ASSERT_EQ(frame.size(), 4U);
    ASSERT_EQ(std::memcmp(frame.data(), "last", 4), 0);
    leaver.release(Lane::kBulk);
    Connection& other = *peers.connections[static_cast<std::size_t>(2 - rank)];
    EXPECT_TRUE(other.health().isOk()) << other.health().message();
    meet(other);
  });
}

TEST_P(TransportContract, DroppingTheConnectionsIsLeavingToo) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    if (rank == 1) {
      meet(connection);
      peers.connections.clear();
      return;
    }
    EXPECT_TRUE(connection.health().isOk());
    meet(connection);
    Status failure;
    awaitFailure(connection, &failure);
    expectFailure(failure, 1, "left the group");
  });
}

}  // namespace shardwire::testing
