// Ctrl-C while a group is made: the interrupted rank returns an error, and the other ranks are notified that the
// rank gave up.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/connect.h"
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/shm_message.h"
#include "backend/transport/tcp/tcp_joining.h"
#include "shardwire/interrupt.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using testing::runRanksAsThreads;

Result<Peers> connectFor(Store& store, Rank rank, int worldSize, Duration timeout, const Options& options = {}) {
  return connectPeers(store, rank, worldSize, options, Clock::now() + timeout, "g");
}

void expectWords(const Result<Peers>& peers, StatusCode code, const std::vector<std::string>& words) {
  ASSERT_FALSE(peers.isOk());
  EXPECT_EQ(peers.status().code(), code) << peers.status().message();
  for (const std::string& word : words) {
    EXPECT_NE(peers.status().message().find(word), std::string::npos)
        << "no '" << word << "' in: " << peers.status().message();
  }
}

// Interrupts a thread that has declared itself interruptible.
std::atomic<bool> interruptNow{false};
thread_local bool isInterruptible = false;

class ScopedInterruptCheck {
 public:
  ScopedInterruptCheck() {
    interruptNow.store(false);
    setInterruptCheck([] { return isInterruptible && interruptNow.exchange(false); });
  }
  ~ScopedInterruptCheck() { setInterruptCheck(nullptr); }
};

TEST(InterruptedConnect, ARankThatIsInterruptedBeforeAllArrivedNotifiesTheOthers) {
  const ScopedInterruptCheck check;
  MemoryStore store;
  // Rank 2 never comes.
  runRanksAsThreads(2, [&](Rank rank) {
    isInterruptible = rank == 0;
    interruptNow.store(true);
    const auto start = Clock::now();
    const auto peers = connectFor(store, rank, 3, std::chrono::seconds(60));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
    if (rank == 0) {
      expectWords(peers, StatusCode::kInterrupted, {"interrupted"});
    } else {
      expectWords(peers, StatusCode::kAborted, {"rank 0", "interrupted"});
    }
  });
}

TEST(InterruptedConnect, ARankThatIsInterruptedWhileOthersDialNotifiesThem) {
  const ScopedInterruptCheck check;
  for (const char* transports : {"shm", "tcp"}) {
    MemoryStore store;
    Options options;
    options.transports = transports;
    // Rank 2 published an address and hangs: the rank answers no dialer, and dials no rank.
    RankAddress hanging = *makeAddress();
    hanging.worldSize = 3;
    hanging.transports[static_cast<std::size_t>(TransportKind::kTcp)].bytes = {kTcpVersion};
    hanging.socketName = hanging.lifeName + "-process";
    const ProcessAddress owner{*makeRandomId(), hanging.socketName, {}};
    hanging.transports[static_cast<std::size_t>(TransportKind::kShm)].bytes =
        encodeShmAddress({owner, 0, {}, OrdinaryPath::kAuto});
    auto listener = listenUnix(hanging.socketName, 8);
    auto life = listenUnix(hanging.lifeName, 8);
    ASSERT_TRUE(listener.isOk() && life.isOk());
    ASSERT_TRUE(store.set(addressKey(2), encodeAddress(hanging)).isOk());
    runRanksAsThreads(2, [&](Rank rank) {
      isInterruptible = rank == 0;
      interruptNow.store(true);
      const auto start = Clock::now();
      const auto peers = connectFor(store, rank, 3, std::chrono::seconds(60), options);
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
      if (rank == 0) {
        expectWords(peers, StatusCode::kInterrupted, {"interrupted"});
      } else {
        expectWords(peers, StatusCode::kAborted, {"rank 0", "interrupted"});
      }
    });
  }
}

}  // namespace
}  // namespace shardwire::internal
