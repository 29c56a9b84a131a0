// The part of the contract about peers that die or leave. Included by contract.h.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

namespace shardwire::testing {

// Polls until the peer counts as failed; returns the time of the wait.
inline Duration awaitFailure(Connection& connection, Status* failure) {
  const auto start = Clock::now();
  while ((*failure = connection.health()).isOk() && Clock::now() - start < std::chrono::seconds(10)) {
    pollWires();
    std::this_thread::yield();
  }
  return Clock::now() - start;
}

inline void expectFailure(const Status& failure, Rank peer, const std::string& words) {
  EXPECT_EQ(failure.code(), StatusCode::kPeerFailed);
  EXPECT_NE(failure.message().find("rank " + std::to_string(peer)), std::string::npos) << failure.message();
  EXPECT_NE(failure.message().find(words), std::string::npos) << failure.message();
}

// A duration that forked ranks share with the test.
class SharedDuration {
 public:
  explicit SharedDuration(Duration::rep first) {
    void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SW_CHECK(memory != MAP_FAILED);
    value_ = new (memory) std::atomic<Duration::rep>(first);
  }
  ~SharedDuration() { ::munmap(static_cast<void*>(value_), 4096); }
  SharedDuration(const SharedDuration&) = delete;
  SharedDuration& operator=(const SharedDuration&) = delete;

  Duration get() const { return Duration(value_->load()); }
  void keepLeast(Duration duration) { value_->store(std::min(value_->load(), duration.count())); }

 private:
  std::atomic<Duration::rep>* value_;
};

// Sends the time and dies by SIGKILL, with memory that the kernel must free before it closes the socket.
[[noreturn]] inline void die(Connection& connection, bool isLarge) {
  std::vector<char> memory(isLarge ? std::size_t{256} << 20 : 1, 1);
  const auto now = Clock::now();
  sendFrame(connection, Lane::kControl, &now, sizeof(now));
  while (true) {
    ::kill(::getpid(), SIGKILL);
  }
}

// The time from the peer's death until the peer counts as failed.
inline Duration timeToNotice(Connection& connection) {
  const auto frame = awaitFrame(connection, Lane::kControl);
  Deadline killed;
  EXPECT_EQ(frame.size(), sizeof(killed));
  std::memcpy(&killed, frame.data(), sizeof(killed));
  connection.release(Lane::kControl);
  Status failure;
  awaitFailure(connection, &failure);
  const auto late = Clock::now() - killed;
  expectFailure(failure, 1, "died");
  EXPECT_EQ(connection.health(), failure);
  // Mapped memory stays mapped, and sent frames go nowhere.
  EXPECT_TRUE(connection.peek(Lane::kControl).empty());
  EXPECT_FALSE(connection.reserve(Lane::kBulk, 8, 8).empty());
  connection.commit(Lane::kBulk, 8);
  pollWires();
  return late;
}

// The kernel frees a dead process's memory before the kernel closes the sockets: the time grows with the size of the
// memory. An emulated machine takes long to end a process.
inline constexpr Duration kNoticeDeathWithin = std::chrono::seconds(1);

TEST_P(TransportContract, KilledPeerIsNoticedWithinASecond) {
  if (!GetParam().forked) {
    GTEST_SKIP() << "a thread cannot be killed";
  }
  for (const bool isLarge : {true, false}) {
    // On a machine with more to do than cores the dying process or this one may have to wait for a core: the best of a
    // few tries counts.
    SharedDuration best(Duration(std::chrono::hours(1)).count());
    for (int attempt = 0; attempt < 5 && best.get() >= kNoticeDeathWithin; ++attempt) {
      run(2,
          [&](Rank rank, Peers& peers) {
            Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
            if (rank == 1) {
              die(connection, isLarge);
            }
            best.keepLeast(timeToNotice(connection));
          },
          {1});
      if (IsSkipped()) {
        return;
      }
    }
    EXPECT_LT(best.get(), kNoticeDeathWithin) << (isLarge ? "with much" : "with little") << " memory to free";
  }
}

TEST_P(TransportContract, OrderlyLeaveIsReported) {
  run(3, [](Rank rank, Peers& peers) {
    if (rank == 1) {
      std::thread engine([&] {
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
    // The frames sent before the departure are still there.
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
