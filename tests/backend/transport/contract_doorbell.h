// The part of the contract about sleeping and waking. Included by contract.h.
#pragma once

namespace shardwire::testing {

// As long as a sleeper whose wake-up was lost sleeps, and longer than a busy machine keeps a rung sleeper waiting.
constexpr std::chrono::seconds kLongSleep{10};

// During the life of this object no sleeper wakes by its own timer for long: one lost wake-up costs seconds, more than
// any busy machine costs.
class LongSleeps {
 public:
  LongSleeps() { internal::setLongestSleep(kLongSleep); }
  ~LongSleeps() { internal::setLongestSleep(usual_); }
  LongSleeps(const LongSleeps&) = delete;
  LongSleeps& operator=(const LongSleeps&) = delete;

 private:
  const Duration usual_ = internal::longestSleep();
};

// Counts wake-ups that did not come, where ranks ring each other continuously.
class SleepWatch {
 public:
  void sleep(internal::Doorbell& doorbell, std::uint32_t ticket) {
    const auto end = Clock::now() + kLongSleep;
    doorbell.sleep(ticket, end);
    numLost_ += Clock::now() >= end;  // a shorter sleep was ended by a ring, however late the machine ran this thread
  }
  bool lostNone() const { return numLost_ == 0; }

 private:
  int numLost_ = 0;
};

// Waits for a frame by arm, look, sleep only: every lost wake-up shows as a long sleep.
inline std::span<const std::byte> sleepForFrame(Connection& connection, internal::Doorbell& doorbell, Lane lane,
                                                SleepWatch* watch) {
  while (true) {
    const std::uint32_t ticket = doorbell.arm(internal::Wakes::kSleepers);
    pollWires();
    if (const auto frame = connection.peek(lane); !frame.empty()) {
      doorbell.disarm();
      return frame;
    }
    watch->sleep(doorbell, ticket);
  }
}

// A round takes microseconds. On a machine kept busy by other programs, and over MPI, where sleepers take naps, a round
// may take milliseconds.
struct Turn {
  int round = 0;
  bool isLast = false;
};
class Turns {
 public:
  explicit Turns(int most) : most_(most) {}
  Turn next() {
    turn_.isLast = ++turn_.round == most_ || Clock::now() - start_ > std::chrono::seconds(5);
    return turn_;
  }

 private:
  const int most_;
  const Deadline start_ = Clock::now();
  Turn turn_;
};

TEST_P(TransportContract, NoWakeUpIsLostBetweenTwoSleepers) {
  const LongSleeps longSleeps;
  run(2, [&](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    SleepWatch watch;
    std::minstd_rand random(static_cast<unsigned>(rank) + 1);
    Turns turns(10000);
    Turn turn;
    const auto send = [&] {
      // Now at once, now a little later: the peer is caught before, at and after falling asleep.
      const auto until = Clock::now() + std::chrono::nanoseconds(random() % 8000);
      while (Clock::now() < until) {
      }
      sendFrame(connection, Lane::kControl, &turn, sizeof turn);
    };
    while (!turn.isLast) {
      if (rank == 0) {
        turn = turns.next();
        send();
      }
      const auto frame = sleepForFrame(connection, *peers.doorbell, Lane::kControl, &watch);
      Turn theirs;
      std::memcpy(&theirs, frame.data(), sizeof theirs);
      ASSERT_EQ(theirs.round, turn.round + (rank == 0 ? 0 : 1));
      connection.release(Lane::kControl);
      if (rank == 1) {
        turn = theirs;
        send();
      }
    }
    EXPECT_GE(turn.round, 100);
    EXPECT_TRUE(watch.lostNone());
    meet(connection);
  });
}

TEST_P(TransportContract, NoWakeUpIsLostWhenSeveralPeersRing) {
  const LongSleeps longSleeps;
  run(3, [&](Rank rank, Peers& peers) {
    SleepWatch watch;
    if (rank == 0) {
      for (int numGoing = 2; numGoing > 0;) {
        const std::uint32_t ticket = peers.doorbell->arm(internal::Wakes::kSleepers);
        pollWires();
        bool progress = false;
        for (const Rank peer : {1, 2}) {
          Connection& connection = *peers.connections[static_cast<std::size_t>(peer)];
          if (const auto frame = connection.peek(Lane::kBulk); !frame.empty()) {
            Turn turn;
            std::memcpy(&turn, frame.data(), sizeof turn);
            numGoing -= turn.isLast ? 1 : 0;
            connection.release(Lane::kBulk);
            sendFrame(connection, Lane::kControl, "a", 1);
            progress = true;
          }
        }
        if (!progress) {
          watch.sleep(*peers.doorbell, ticket);
        }
      }
      peers.doorbell->disarm();
    } else {
      Connection& connection = *peers.connections[0];
      Turns turns(3000);
      for (Turn turn; !turn.isLast;) {
        turn = turns.next();
        sendFrame(connection, Lane::kBulk, &turn, sizeof turn);
        sleepForFrame(connection, *peers.doorbell, Lane::kControl, &watch);
        connection.release(Lane::kControl);
      }
    }
    EXPECT_TRUE(watch.lostNone());
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer != rank) {
        meet(*peers.connections[static_cast<std::size_t>(peer)]);
      }
    }
  });
}

TEST_P(TransportContract, ReleaseWakesASenderThatWaitsForRoom) {
  constexpr int kNumFrames = 400;
  const LongSleeps longSleeps;
  run(2, [&](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    const std::size_t size = connection.maxFrameBytes(Lane::kPoint);
    SleepWatch watch;
    for (int i = 0; i < kNumFrames; ++i) {
      if (rank == 0) {
        while (true) {
          const std::uint32_t ticket = peers.doorbell->arm(internal::Wakes::kSleepers);
          pollWires();
          if (!connection.reserve(Lane::kPoint, size, size).empty()) {
            peers.doorbell->disarm();
            break;
          }
          watch.sleep(*peers.doorbell, ticket);
        }
        connection.commit(Lane::kPoint, size);
      } else {
        ASSERT_EQ(sleepForFrame(connection, *peers.doorbell, Lane::kPoint, &watch).size(), size);
        connection.release(Lane::kPoint);
      }
    }
    EXPECT_TRUE(watch.lostNone());
    meet(connection);
  });
}

TEST_P(TransportContract, AReleaseDoesNotRingForASenderWithRoom) {
  if (GetParam().isWire) {
    GTEST_SKIP() << "a wire rings for bytes that no thread has found yet, and a release is bytes";
  }
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    if (rank == 0) {
      const std::uint32_t ticket = peers.doorbell->arm(internal::Wakes::kSleepers);
      sendFrame(connection, Lane::kControl, "a", 1);
      peers.doorbell->sleep(ticket, Clock::now() + std::chrono::milliseconds(50));
      EXPECT_EQ(peers.doorbell->ticket(), ticket);
      sendFrame(connection, Lane::kBulk, "b", 1);
    } else {
      for (const Lane lane : {Lane::kControl, Lane::kBulk}) {
        ASSERT_FALSE(awaitFrame(connection, lane).empty());
        connection.release(lane);
      }
    }
    meet(connection);
  });
}

TEST_P(TransportContract, RingSelfWakesEveryThreadOfTheRank) {
  const LongSleeps longSleeps;
  run(1, [&](Rank, Peers& peers) {
    constexpr int kNumRounds = 300;
    std::atomic<int> round{0};
    std::atomic<int> numSeen{0};
    std::atomic<bool> lostNone{true};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        SleepWatch watch;
        for (int expected = 1; expected <= kNumRounds; ++expected) {
          while (true) {
            const std::uint32_t ticket = peers.doorbell->ticket();  // before the look: not armed, but ringSelf() counts
            if (round.load() >= expected) {
              break;
            }
            watch.sleep(*peers.doorbell, ticket);
          }
          numSeen.fetch_add(1);
        }
        lostNone.store(lostNone.load() && watch.lostNone());
      });
    }
    for (int i = 1; i <= kNumRounds; ++i) {
      round.store(i);
      peers.doorbell->ringSelf();
      while (numSeen.load() < 3 * i) {
        std::this_thread::yield();
      }
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_TRUE(lostNone.load());
  });
}

TEST_P(TransportContract, ARingAfterArmEndsEverySleepThatStartedFromItsTicket) {
  if (GetParam().isWire) {
    GTEST_SKIP() << "a wire rings for bytes that no thread has found yet";
  }
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    if (rank == 1) {
      const auto go = awaitFrame(connection, Lane::kControl);
      ASSERT_FALSE(go.empty());
      connection.release(Lane::kControl);
      sendFrame(connection, Lane::kBulk, "b", 1);
      return meet(connection);
    }
    const std::uint32_t ticket = peers.doorbell->arm(internal::Wakes::kSleepers);
    sendFrame(connection, Lane::kControl, "g", 1);
    ASSERT_FALSE(
        awaitFrame(connection, Lane::kBulk).empty());  // the look found the frame, and rings are counted all the same
    connection.release(Lane::kBulk);
    meet(connection);
    const auto start = Clock::now();
    for (int i = 0; i < 100; ++i) {
      peers.doorbell->sleep(ticket, start + std::chrono::seconds(60));
    }
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));  // 100 ms for each sleep if the sleeps did not end early
    // No ring follows: the sleep ends at its deadline.
    peers.doorbell->sleep(peers.doorbell->ticket(), Clock::now() + std::chrono::milliseconds(20));
    EXPECT_GE(Clock::now() - start, std::chrono::milliseconds(19));
  });
}

}  // namespace shardwire::testing
