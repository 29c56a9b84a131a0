#include "backend/fabric/process_bell.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "backend/fabric/longest_sleep.h"

namespace shardwire::internal {
namespace {

constexpr std::chrono::seconds kLong{20};

TEST(ProcessBell, AMoveWakesAThreadThatSleepsOnTheOldWord) {
  setLongestSleep(kLong);
  std::atomic<std::uint32_t> word{0};
  ProcessBell bell;
  const Deadline start = Clock::now();
  std::thread sleeper([&] { bell.sleep(bell.ticket(), start + kLong); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the sleeper mostly sleeps by now
  bell.moveTo(word);
  sleeper.join();
  EXPECT_LT(Clock::now() - start, kLong / 2);
}

TEST(ProcessBell, ATicketOfTheOldWordIsOutdatedAfterAMove) {
  setLongestSleep(kLong);
  std::atomic<std::uint32_t> word{0};
  ProcessBell bell;
  bell.ring();
  const std::uint32_t before = bell.ticket();
  bell.moveTo(word);
  const Deadline start = Clock::now();
  bell.sleep(before, start + kLong);
  EXPECT_LT(Clock::now() - start, kLong / 2);
  EXPECT_NE(bell.ticket(), before);
}

TEST(ProcessBell, ARingAfterAMoveCountsInTheNewWordAndWakes) {
  setLongestSleep(kLong);
  std::atomic<std::uint32_t> word{0};
  ProcessBell bell;
  bell.moveTo(word);
  const std::uint32_t before = word.load();
  EXPECT_EQ(bell.ticket(), before);
  const Deadline start = Clock::now();
  std::thread sleeper([&, ticket = bell.ticket()] { bell.sleep(ticket, start + kLong); });
  bell.ring();
  sleeper.join();
  EXPECT_EQ(word.load(), before + 1);
  EXPECT_LT(Clock::now() - start, kLong / 2);
}

// However the move falls between the look for work and the sleep, no ring is lost.
TEST(ProcessBell, NoRingIsLostInAMove) {
  setLongestSleep(kLong);
  for (int round = 0; round < 200; ++round) {
    std::atomic<std::uint32_t> word{0};
    ProcessBell bell;
    std::atomic<bool> hasWork{false};
    const Deadline start = Clock::now();
    std::thread sleeper([&] {
      while (true) {
        const std::uint32_t ticket = bell.ticket();
        if (hasWork.load(std::memory_order_seq_cst)) {
          return;
        }
        bell.sleep(ticket, start + kLong);
      }
    });
    std::thread mover([&] { bell.moveTo(word); });
    hasWork.store(true, std::memory_order_seq_cst);
    bell.ring();
    mover.join();
    sleeper.join();
    ASSERT_LT(Clock::now() - start, kLong / 2);
  }
}

}  // namespace
}  // namespace shardwire::internal
