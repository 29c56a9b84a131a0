// The part of the contract about fetches: memory of a peer that arrives later. For wires only: instantiate WireContract
// beside TransportContract.
#pragma once

#include "tests/backend/transport/contract.h"

namespace shardwire::testing {

using internal::FetchCount;

class WireContract : public TransportContract {};

// A wire may also stage everything at the owner (an RDMA device without memory to pin): then this test has no fetch to
// check.
inline bool isFetched(const Exposed& exposed) {
  return exposed.reach == Reach::kFetch;
}

// Asks, waiting for room.
inline void startFetch(Connection& connection, const Exposed& exposed, std::span<const MemoryRun> runs,
                       FetchCount* count) {
  int idle = 0;
  for (const auto start = Clock::now(); !connection.fetch(exposed.address.space, runs, count); pause(&idle)) {
    ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
    ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "no room for a fetch";
  }
}

inline void awaitFetches(Connection& connection, const FetchCount& count) {
  int idle = 0;
  for (const auto start = Clock::now(); count.pending > 0; pause(&idle)) {
    ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
    ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "a fetch does not end";
  }
}

TEST_P(WireContract, FetchedRunsArriveWhereTheyShall) {
  constexpr std::size_t kSize = (std::size_t{1} << 20) + 13;
  run(2, [](Rank rank, Peers& peers) {
    std::vector<std::byte> memory;
    withExposed(
        rank, peers,
        [&] {
          memory.resize(kSize);
          fillPattern(memory.data(), kSize);
          return std::span(memory);
        },
        [&](Connection& connection, const Exposed& exposed) {
          ASSERT_TRUE(isFetched(exposed));
          EXPECT_GE(exposed.address.space, internal::kFirstExposure);
          std::vector<std::byte> whole(kSize);
          FetchCount count;
          const MemoryRun all{whole.data(), exposed.address.value, kSize};
          startFetch(connection, exposed, {&all, 1}, &count);
          EXPECT_EQ(count.pending, 1U);
          awaitFetches(connection, count);
          EXPECT_TRUE(isPattern(whole.data(), kSize));

          // Scattered on both sides, and more runs than one system call or work request takes.
          std::vector<std::byte> copy(2 * kSize, std::byte{0xee});
          std::vector<MemoryRun> runs = scatteredRuns(copy, exposed);
          std::erase_if(runs, [](const MemoryRun& run) { return run.bytes == 0; });
          ASSERT_GT(runs.size(), 3000U);
          startFetch(connection, exposed, runs, &count);
          awaitFetches(connection, count);
          expectScattered(copy, runs, exposed);
        });
  });
}

TEST_P(WireContract, BothRanksFetchAtOnceWhileFramesTravel) {
  constexpr std::size_t kPiece = (std::size_t{256} << 10) + 3;
  constexpr std::size_t kNumPieces = 48;
  constexpr int kNumFrames = 300;
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    std::vector<std::byte> mine(kPiece * kNumPieces);
    fillPattern(mine.data(), mine.size());
    std::vector<std::byte> theirs(mine.size());
    Exposed exposed{{}, Reach::kNone, mine.size()};
    exposed.reach = connection.expose(mine.data(), mine.size(), &exposed.address);
    const RemoteAddress own = exposed.address;
    sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
    const auto frame = awaitFrame(connection, Lane::kControl);
    ASSERT_EQ(frame.size(), sizeof(exposed));
    std::memcpy(&exposed, frame.data(), sizeof(exposed));
    connection.release(Lane::kControl);
    ASSERT_TRUE(isFetched(exposed));

    FetchCount count;
    std::size_t asked = 0;
    int sent = 0;
    int received = 0;
    int idle = 0;
    for (const auto start = Clock::now();
         asked < kNumPieces || count.pending > 0 || sent < kNumFrames || received < kNumFrames; pause(&idle)) {
      ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
      ASSERT_LT(Clock::now() - start, std::chrono::seconds(30));
      if (asked < kNumPieces) {
        const MemoryRun piece{theirs.data() + asked * kPiece, exposed.address.value + asked * kPiece, kPiece};
        asked += connection.fetch(exposed.address.space, {&piece, 1}, &count) ? 1 : 0;
      }
      if (const auto room = connection.reserve(Lane::kBulk, sizeof sent, sizeof sent);
          sent < kNumFrames && !room.empty()) {
        std::memcpy(room.data(), &sent, sizeof sent);
        connection.commit(Lane::kBulk, sizeof sent);
        ++sent;
      }
      if (const auto in = connection.peek(Lane::kBulk); !in.empty()) {
        int number = -1;
        std::memcpy(&number, in.data(), sizeof number);
        ASSERT_EQ(number, received++);
        connection.release(Lane::kBulk);
      }
    }
    EXPECT_TRUE(isPattern(theirs.data(), theirs.size()));
    meet(connection);
    connection.conceal(own);
    meet(connection);
  });
}

// More rows at once than a packing owner has room for, and a long run behind the rows.
TEST_P(WireContract, FetchesOfRowsBesideLongRunsKeepTheirPlaces) {
  constexpr std::size_t kRow = 2048, kStride = 4096, kRows = 512, kLong = 100003, kNumFetches = 8;
  constexpr std::size_t kBlock = kRows * kStride, kTaken = kRows * kRow + kLong;
  run(2, [](Rank rank, Peers& peers) {
    std::vector<std::byte> memory;
    withExposed(
        rank, peers,
        [&] {
          memory.resize(kNumFetches * kBlock);
          fillPattern(memory.data(), memory.size());
          return std::span(memory);
        },
        [&](Connection& connection, const Exposed& exposed) {
          ASSERT_TRUE(isFetched(exposed));
          std::vector<std::byte> copy(kNumFetches * kTaken);
          FetchCount count;
          for (std::size_t fetch = 0; fetch < kNumFetches; ++fetch) {
            std::byte* const to = copy.data() + fetch * kTaken;
            const std::uint64_t from = exposed.address.value + fetch * kBlock;
            std::vector<MemoryRun> runs;
            for (std::size_t row = 0; row < kRows; ++row) {
              runs.push_back({to + row * kRow, from + row * kStride, kRow});
            }
            runs.push_back({to + kRows * kRow, from + 5, kLong});
            startFetch(connection, exposed, runs, &count);
          }
          awaitFetches(connection, count);
          for (std::size_t fetch = 0; fetch < kNumFetches; ++fetch) {
            const std::byte* const there = copy.data() + fetch * kTaken;
            for (std::size_t row = 0; row < kRows; ++row) {
              ASSERT_TRUE(isPattern(there + row * kRow, kRow, fetch * kBlock + row * kStride))
                  << "fetch " << fetch << ", row " << row;
            }
            ASSERT_TRUE(isPattern(there + kRows * kRow, kLong, fetch * kBlock + 5)) << "fetch " << fetch;
          }
        });
  });
}

TEST_P(WireContract, OnlyWhatIsExposedIsFetched) {
  // Before the exposure, past the end, wrapping around, never exposed, no longer exposed.
  for (int attempt = 0; attempt < 5; ++attempt) {
    run(2, [&](Rank rank, Peers& peers) {
      Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
      std::vector<std::byte> memory(8192);
      if (rank == 0) {
        Exposed exposed{{}, Reach::kNone, 4096};
        exposed.reach = connection.expose(memory.data() + 2048, 4096, &exposed.address);
        if (attempt == 4) {
          connection.conceal(exposed.address);
        }
        sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
        int idle = 0;
        while (awaitFrame(connection, Lane::kPoint).empty() && connection.health().isOk()) {
          pause(&idle);
        }
        return;
      }
      const auto frame = awaitFrame(connection, Lane::kControl);
      Exposed exposed;
      ASSERT_EQ(frame.size(), sizeof(exposed));
      std::memcpy(&exposed, frame.data(), sizeof(exposed));
      connection.release(Lane::kControl);
      ASSERT_TRUE(isFetched(exposed));
      const std::uint64_t base = exposed.address.value;
      const MemoryRun runs[] = {{memory.data(), base - 1, 16},
                                {memory.data(), base + 4090, 16},
                                {memory.data(), ~std::uint64_t{0} - 7, 4096},
                                {memory.data(), base, 16},
                                {memory.data(), base, 16}};
      if (attempt == 3) {
        exposed.address.space += 1000;
      }
      FetchCount count;
      startFetch(connection, exposed, {&runs[attempt], 1}, &count);
      Status failure;
      awaitFailure(connection, &failure);
      EXPECT_FALSE(failure.isOk()) << "attempt " << attempt;
      EXPECT_NE(failure.message().find("rank 0"), std::string::npos) << failure.message();
      EXPECT_EQ(count.pending, 1U);
      EXPECT_EQ(memory[0], std::byte{0});
      (void)connection.stopFetches();
    });
  }
}

TEST_P(WireContract, NothingIsTouchedOnceFetchesAreStopped) {
  constexpr std::size_t kSize = std::size_t{32} << 20;
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    std::vector<std::byte> memory(kSize, rank == 0 ? std::byte{1} : std::byte{2});
    FetchCount count;
    bool stopped = false;
    if (rank == 0) {
      Exposed exposed{{}, Reach::kNone, kSize};
      exposed.reach = connection.expose(memory.data(), kSize, &exposed.address);
      sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
      const auto frame = awaitFrame(connection, Lane::kPoint);
      ASSERT_FALSE(frame.empty()) << connection.health().message();
      connection.release(Lane::kPoint);
      stopped = connection.stopFetches();
    } else {
      const auto frame = awaitFrame(connection, Lane::kControl);
      Exposed exposed;
      ASSERT_EQ(frame.size(), sizeof(exposed));
      std::memcpy(&exposed, frame.data(), sizeof(exposed));
      connection.release(Lane::kControl);
      ASSERT_TRUE(isFetched(exposed));
      const MemoryRun all{memory.data(), exposed.address.value, kSize};
      startFetch(connection, exposed, {&all, 1}, &count);
      pollWires();
      stopped = connection.stopFetches();
      if (stopped) {
        std::fill(memory.begin(), memory.end(), std::byte{3});
      }
      sendFrame(connection, Lane::kPoint, "s", 1);  // frames still travel
    }
    meet(connection);
    for (int i = 0; i < 200; ++i) {
      pollWires();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (stopped && rank == 1) {
      EXPECT_EQ(count.pending, 1U);
      EXPECT_EQ(std::count(memory.begin(), memory.end(), std::byte{3}), static_cast<std::ptrdiff_t>(kSize));
    }
    meet(connection);
    // MPI: messages under way continue. A message that the fetcher has not cancelled ends; a message without a receiver
    // never does.
    int idle = 0;
    for (const auto start = Clock::now(); rank == 1 && !stopped; pause(&idle)) {
      stopped = connection.stopFetches();
      ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
      ASSERT_LT(Clock::now() - start, std::chrono::seconds(20)) << "what is under way does not end";
    }
    if (!stopped) {
      new std::vector<std::byte>(std::move(memory));  // must stay until the process ends
    }
    meet(connection);
  });
}

}  // namespace shardwire::testing
