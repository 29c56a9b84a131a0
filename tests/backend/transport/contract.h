// The requirements of every transport: one suite, run with a small fixture for each transport and each kind of rank
// (threads, processes). Include this header in one test file for each transport, and instantiate TransportContract
// there.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "backend/bootstrap/connect.h"
#include "backend/fabric/longest_sleep.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/launched_ranks.h"

namespace shardwire::testing {

using internal::Connection;
using internal::Lane;
using internal::Peers;

// The wires of this thread's rank: a waiting thread polls the wires, as the engine does.
inline thread_local Peers* ownPeers = nullptr;

inline void pollWires() {
  if (ownPeers != nullptr) {
    for (const auto& wire : ownPeers->wires) {
      wire->poll();
    }
  }
}

struct TransportFixture {
  std::string name;
  bool forked;  // ranks are processes made by this process; ranks made by mpirun are neither forked nor threads
  Options options;
  bool isWire = false;  // memory is reached by fetches, and the end of a thread counts as no rank's death
  // Where ranks are on several hosts: makes the hosts; returns null, or the reason of the failure. `enterHost` is then
  // called on each rank before the rank joins.
  const char* (*prepareHosts)() = nullptr;
  void (*enterHost)(Rank) = nullptr;
};

class TransportContract : public ::testing::TestWithParam<TransportFixture> {
 protected:
  // Connects `numRanks` ranks and runs `function` on each; the connections end when run() returns.
  void run(int numRanks, const std::function<void(Rank, Peers&)>& function, const std::set<Rank>& mayDie = {}) {
    if (const char* whyNot = GetParam().prepareHosts != nullptr ? GetParam().prepareHosts() : nullptr;
        whyNot != nullptr) {
      GTEST_SKIP() << "no two hosts here: " << whyNot;
    }
    const std::unique_ptr<Store> store = makeStore();
    const RankFunction rankFunction = [&](Rank rank) {
      if (GetParam().enterHost != nullptr) {
        GetParam().enterHost(rank);
      }
      auto peers = internal::connectPeers(*store, rank, numRanks, GetParam().options,
                                          Clock::now() + std::chrono::seconds(20), "contract");
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
      ownPeers = &*peers;
      function(rank, *peers);
      ownPeers = nullptr;
    };
    if (areRanksLaunched()) {
      runLaunchedRank(numRanks, rankFunction);
    } else if (GetParam().forked) {
      runRanksAsProcesses(numRanks, rankFunction, kRankTimeLimit, mayDie);
    } else {
      runRanksAsThreads(numRanks, rankFunction);
    }
  }
};

inline constexpr Lane kLanes[] = {Lane::kControl, Lane::kBulk, Lane::kPoint};

// Gives up a core when both ranks share one: spinning alone would take a whole time slice for each frame.
inline void pause(int* idle) {
  pollWires();
  if (++*idle % 64 == 0) {
    std::this_thread::yield();
  }
}

// Sends one frame, waiting for room.
inline void sendFrame(Connection& connection, Lane lane, const void* bytes, std::size_t size) {
  std::span<std::byte> room;
  for (int idle = 0; (room = connection.reserve(lane, size, size)).empty(); pause(&idle)) {
  }
  std::memcpy(room.data(), bytes, size);
  connection.commit(lane, size);
}

// Waits for a frame; empty when the peer failed instead.
inline std::span<const std::byte> awaitFrame(Connection& connection, Lane lane) {
  int idle = 0;
  while (true) {
    if (const auto frame = connection.peek(lane); !frame.empty()) {
      return frame;
    }
    pause(&idle);
    if (idle % 4096 == 0 && !connection.health().isOk()) {
      return connection.peek(lane);
    }
  }
}

// A one-byte frame in each direction on the control lane: when meet() returns, both ranks have called meet().
inline void meet(Connection& connection) {
  const char byte = '!';
  sendFrame(connection, Lane::kControl, &byte, 1);
  const auto frame = awaitFrame(connection, Lane::kControl);
  ASSERT_EQ(frame.size(), 1U);
  ASSERT_EQ(static_cast<char>(frame[0]), '!');
  connection.release(Lane::kControl);
}

// Frame number `number` of a lane: size and bytes follow from the number.
inline std::vector<std::byte> makeFrame(Lane lane, std::uint32_t number, std::size_t largest) {
  std::minstd_rand random(number * 7919 + static_cast<std::uint32_t>(lane) + 1);
  // Mostly small, at times the largest.
  const std::size_t size =
      number % 16 == 15 ? largest : 1 + random() % std::min<std::size_t>(largest, number % 4 == 0 ? largest : 300);
  std::vector<std::byte> frame(size);
  for (std::size_t i = 0; i < size; ++i) {
    frame[i] = static_cast<std::byte>(number + i * 31);
  }
  return frame;
}

TEST_P(TransportContract, DeliversFramesOnceInOrderAndWholeOnEveryLane) {
#if defined(__SANITIZE_THREAD__)  // in each of these the rings wrap around
  constexpr std::uint32_t kNumFrames = 100;
#elif defined(__SANITIZE_ADDRESS__)
  constexpr std::uint32_t kNumFrames = 300;
#else
  constexpr std::uint32_t kNumFrames = 600;
#endif
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    std::uint32_t sent[internal::kNumLanes] = {};
    std::uint32_t received[internal::kNumLanes] = {};
    int idle = 0;
    bool done = false;
    while (!done) {  // both ranks send and receive on all lanes at once
      bool progress = false;
      done = true;
      for (const Lane lane : kLanes) {
        const auto l = static_cast<std::size_t>(lane);
        if (sent[l] < kNumFrames) {
          const auto frame = makeFrame(lane, sent[l], connection.maxFrameBytes(lane));
          // The room may be larger than asked for, never smaller.
          const auto room = connection.reserve(lane, frame.size(), frame.size() + 100);
          if (!room.empty()) {
            ASSERT_GE(room.size(), frame.size());
            ASSERT_LE(room.size(), frame.size() + 100);
            std::memcpy(room.data(), frame.data(), frame.size());
            connection.commit(lane, frame.size());
            ++sent[l];
            progress = true;
          }
        }
        if (const auto frame = connection.peek(lane); received[l] < kNumFrames && !frame.empty()) {
          const auto expected = makeFrame(lane, received[l], connection.maxFrameBytes(lane));
          ASSERT_EQ(frame.size(), expected.size()) << "lane " << l << " frame " << received[l];
          ASSERT_EQ(std::memcmp(frame.data(), expected.data(), frame.size()), 0)
              << "lane " << l << " frame " << received[l];
          connection.release(lane);
          ++received[l];
          progress = true;
        }
        done = done && sent[l] == kNumFrames && received[l] == kNumFrames;
      }
      if (!progress) {
        pause(&idle);
      } else {
        pollWires();
      }
    }
    meet(connection);
  });
}

TEST_P(TransportContract, AFullLaneHoldsBackItsSenderAndNoOtherLane) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    const std::size_t size = connection.maxFrameBytes(Lane::kBulk);
    if (rank == 0) {
      std::uint32_t sent = 0;
      for (std::span<std::byte> room; !(room = connection.reserve(Lane::kBulk, size, size)).empty(); ++sent) {
        ASSERT_LT(sent, 10000U) << "the lane takes frames without end";
        std::memset(room.data(), static_cast<int>(sent), size);
        connection.commit(Lane::kBulk, size);
      }
      ASSERT_GE(sent, 2U);
      // The other lanes go on, and so does a smaller look at the full one: still nothing is lost.
      sendFrame(connection, Lane::kPoint, &sent, sizeof(sent));
      sendFrame(connection, Lane::kControl, &sent, sizeof(sent));
      const auto answer = awaitFrame(
          connection, Lane::kControl);  // the peer has released one bulk frame, and the freed room is on the way
      ASSERT_FALSE(answer.empty());
      connection.release(Lane::kControl);
      std::span<std::byte> room;
      int idle = 0;
      for (const auto start = Clock::now(); (room = connection.reserve(Lane::kBulk, 8, size)).empty(); pause(&idle)) {
        ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "the room does not come";
      }
      std::memset(room.data(), static_cast<int>(sent), room.size());
      connection.commit(Lane::kBulk, room.size());
    } else {
      std::uint32_t sent = 0;
      for (const Lane lane : {Lane::kControl, Lane::kPoint}) {  // taken although bulk frames lie there untouched
        const auto frame = awaitFrame(connection, lane);
        ASSERT_EQ(frame.size(), sizeof(sent));
        std::memcpy(&sent, frame.data(), sizeof(sent));
        connection.release(lane);
      }
      for (std::uint32_t i = 0; i <= sent; ++i) {
        const auto frame = awaitFrame(connection, Lane::kBulk);
        ASSERT_FALSE(frame.empty());
        ASSERT_EQ(frame.front(), static_cast<std::byte>(i));
        ASSERT_EQ(frame.back(), static_cast<std::byte>(i));
        connection.release(Lane::kBulk);
        if (i == 0) {
          sendFrame(connection, Lane::kControl, &sent, 1);
        }
      }
    }
    meet(connection);
  });
}

// One rank releases frames while its own frames fill a lane almost completely. Where frames carry the news of released
// frames, the last frames must not hold the news back: the peer may not have taken these frames yet.
TEST_P(TransportContract, AFullLaneHoldsBackNoRoomOfAnother) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    constexpr std::size_t kPointBytes = 4000;
    int count = 0;
    if (rank == 0) {
      const auto frame = awaitFrame(connection, Lane::kControl);
      ASSERT_EQ(frame.size(), sizeof(count));
      std::memcpy(&count, frame.data(), sizeof(count));
      connection.release(Lane::kControl);
      const std::vector<std::byte> most(connection.maxFrameBytes(Lane::kBulk) - 100);
      for (int i = 0; i < 3; ++i) {
        sendFrame(connection, Lane::kBulk, most.data(), most.size());
      }
      for (int i = 0; i < count; ++i) {
        ASSERT_FALSE(awaitFrame(connection, Lane::kPoint).empty());
        connection.release(Lane::kPoint);
        if (!connection.reserve(Lane::kBulk, 1, 1).empty()) {
          connection.commit(Lane::kBulk, 1);
        }
      }
      ASSERT_FALSE(awaitFrame(connection, Lane::kControl).empty());  // before this rank sends anything else
      connection.release(Lane::kControl);
    } else {
      for (std::span<std::byte> room; !(room = connection.reserve(Lane::kPoint, kPointBytes, kPointBytes)).empty();
           ++count) {
        std::memset(room.data(), count, kPointBytes);
        connection.commit(Lane::kPoint, kPointBytes);
      }
      sendFrame(connection, Lane::kControl, &count, sizeof(count));
      int idle = 0;
      for (int sent = 0; sent < count / 2; ++sent) {  // of the room for all frames
        const auto start = Clock::now();
        for (; connection.reserve(Lane::kPoint, kPointBytes, kPointBytes).empty(); pause(&idle)) {
          ASSERT_LT(Clock::now() - start, std::chrono::seconds(10)) << "the room does not come";
        }
        connection.commit(Lane::kPoint, kPointBytes);
      }
      sendFrame(connection, Lane::kControl, &count, sizeof(count));
    }
    meet(connection);
  });
}

TEST_P(TransportContract, AReservationThatIsGivenBackSendsNothing) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    for (int i = 0; i < 3; ++i) {
      ASSERT_FALSE(connection.reserve(Lane::kPoint, 10, 100).empty());
      connection.commit(Lane::kPoint, 0);
    }
    const std::uint64_t word = 41;
    sendFrame(connection, Lane::kPoint, &word, sizeof(word));
    const auto frame = awaitFrame(connection, Lane::kPoint);
    ASSERT_EQ(frame.size(), sizeof(word));
    ASSERT_EQ(std::memcmp(frame.data(), &word, sizeof(word)), 0);
    // peek() is idempotent until release().
    ASSERT_EQ(connection.peek(Lane::kPoint).data(), frame.data());
    connection.release(Lane::kPoint);
    ASSERT_TRUE(connection.peek(Lane::kPoint).empty());
    meet(connection);
  });
}

TEST_P(TransportContract, EveryPairOfRanksIsJoined) {
  run(5, [](Rank rank, Peers& peers) {
    ASSERT_EQ(peers.connections.size(), 5U);
    if (GetParam().enterHost == nullptr) {
      ASSERT_EQ(peers.hosts, std::vector<std::int32_t>(5, 0));
    }
    ASSERT_EQ(peers.connections[static_cast<std::size_t>(rank)], nullptr);
    for (Rank peer = 0; peer < 5; ++peer) {
      if (peer != rank) {
        const int word = rank * 100 + peer;
        sendFrame(*peers.connections[static_cast<std::size_t>(peer)], Lane::kBulk, &word, sizeof(word));
      }
    }
    for (Rank peer = 0; peer < 5; ++peer) {
      if (peer == rank) {
        continue;
      }
      Connection& connection = *peers.connections[static_cast<std::size_t>(peer)];
      ASSERT_EQ(connection.peer(), peer);
      int word = 0;
      const auto frame = awaitFrame(connection, Lane::kBulk);
      ASSERT_EQ(frame.size(), sizeof(word));
      std::memcpy(&word, frame.data(), sizeof(word));
      ASSERT_EQ(word, peer * 100 + rank);
      connection.release(Lane::kBulk);
      EXPECT_TRUE(connection.health().isOk()) << connection.health().message();
      EXPECT_NE(connection.describe().find("rank " + std::to_string(peer)), std::string::npos) << connection.describe();
    }
    for (Rank peer = 0; peer < 5; ++peer) {
      if (peer != rank) {
        meet(*peers.connections[static_cast<std::size_t>(peer)]);
      }
    }
  });
}

}  // namespace shardwire::testing

#include "tests/backend/transport/contract_doorbell.h"
#include "tests/backend/transport/contract_health.h"
#include "tests/backend/transport/contract_memory.h"
