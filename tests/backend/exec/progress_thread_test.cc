// The list of groups in the progress thread, with groups without work. First the cost of a walk over many groups. Then
// removal: during a look, by the look itself, and by the callbacks of two groups, where each removes both groups. The
// bell rings all the time.
#include "backend/exec/progress_thread.h"

#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

namespace shardwire::internal {
namespace {

// Rung all the time: the thread never sleeps.
class BusyBell final : public ProgressBell {
 public:
  std::uint32_t ticket() const override { return 0; }
  void sleep(std::uint32_t, Deadline) override { std::this_thread::yield(); }
  void ring() override {}
};

class Group final : public Progressed {
 public:
  explicit Group(std::function<void()> look = [] {}) : look_(std::move(look)) {}
  Look lookAsLeader() override {
    look_();
    ++looks;
    return {.nextLook = Clock::now() + std::chrono::milliseconds(100)};
  }
  std::atomic<int> looks{0};

 private:
  std::function<void()> look_;
};

void awaitLooks(const Group& group, int more) {
  const int until = group.looks + more;
  while (group.looks < until) {
    std::this_thread::yield();
  }
}

Duration cpuTimeOfThread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// The thread's shortest time for one walk over `numGroups` groups.
Duration costOfWalk(int numGroups) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  Duration last{0};
  std::atomic<Duration::rep> least{Duration::max().count()};
  const auto first = std::make_shared<Group>([&] {
    const Duration now = cpuTimeOfThread();
    if (last > Duration::zero()) {
      least = std::min(least.load(), (now - last).count());
    }
    last = now;
  });
  std::vector<std::shared_ptr<Group>> groups;
  for (int i = 0; i < numGroups; ++i) {
    groups.push_back(std::make_shared<Group>());
    thread->add(groups.back());
  }
  thread->add(first);
  awaitLooks(*first, 10);
  thread->remove(first.get());
  return Duration(least.load());
}

TEST(ProgressThreads, AWalkCostsAsMuchForEachGroupHoweverManyThereAre) {
  EXPECT_LT(costOfWalk(1600), 32 * costOfWalk(200))
      << "8 times as many groups: 8 times, and 64 where each group costs a search";
}

TEST(ProgressThreads, ARemovedGroupIsLookedAtNoMore) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  const auto stays = std::make_shared<Group>();
  thread->add(stays);
  for (int round = 0; round < 50; ++round) {
    const auto goes = std::make_shared<Group>();
    thread->add(goes);
    awaitLooks(*goes, 1);
    thread->remove(goes.get());
    const int looks = goes->looks;
    awaitLooks(*stays, 2);
    EXPECT_EQ(goes->looks, looks);
  }
  thread->remove(stays.get());
}

TEST(ProgressThreads, RemovalWaitsForALookThatIsUnderWay) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  std::atomic<bool> isInside{false}, mayLeave{false}, isOut{false};
  const auto group = std::make_shared<Group>([&] {
    isInside = true;
    while (!mayLeave) {
      std::this_thread::yield();
    }
    isOut = true;
  });
  thread->add(group);
  while (!isInside) {
    std::this_thread::yield();
  }
  std::thread lets([&] { mayLeave = true; });
  thread->remove(group.get());
  EXPECT_TRUE(isOut);
  lets.join();
}

// The list of this walk still has the removed group.
TEST(ProgressThreads, AGroupRemovedDuringAWalkIsLookedAtNoMore) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  std::atomic<bool> mayRemove{false};
  std::atomic<int> looksBefore{-1};
  const auto goes = std::make_shared<Group>();
  const auto first = std::make_shared<Group>([&] {
    if (mayRemove.exchange(false)) {
      thread->remove(goes.get());
      looksBefore = goes->looks.load();
    }
  });
  thread->add(first);
  thread->add(goes);
  awaitLooks(*goes, 1);
  mayRemove = true;
  while (looksBefore < 0) {
    std::this_thread::yield();
  }
  awaitLooks(*first, 2);  // the next walk has begun
  EXPECT_EQ(goes->looks, looksBefore);
  thread->remove(first.get());
}

// A callback that drops the last reference to its group does the same.
TEST(ProgressThreads, ALookMayRemoveItsOwnGroup) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  std::atomic<Group*> self{nullptr};
  std::atomic<bool> isRemoved{false};
  const auto group = std::make_shared<Group>([&] {
    if (self != nullptr) {
      thread->remove(self.exchange(nullptr));
      isRemoved = true;
    }
  });
  self = group.get();
  thread->add(group);
  while (!isRemoved) {
    std::this_thread::yield();
  }
}

TEST(ProgressThreads, ALookMayRemoveItsOwnGroupAfterItsCallbacks) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  std::atomic<Group*> self{nullptr};
  std::atomic<bool> isRemoved{false};
  const auto group = std::make_shared<Group>([&] {
    if (const Group* const own = self.exchange(nullptr); own != nullptr) {
      std::uint64_t turn = 0;
      thread->enterCallbacks(&turn);
      thread->leaveCallbacks(turn);
      thread->remove(own);
      isRemoved = true;
    }
  });
  self = group.get();
  thread->add(group);
  while (!isRemoved) {
    std::this_thread::yield();
  }
}

// A callback may drop the last group of the process. The thread cannot wait for its own end.
TEST(ProgressThreads, ALookMayEndTheThread) {
  auto bell = std::make_shared<BusyBell>();
  const std::weak_ptr<BusyBell> bellOfThread = bell;
  std::shared_ptr<ProgressThread> thread;
  std::atomic<bool> mayEnd{false}, isEnded{false};
  const auto group = std::make_shared<Group>([&] {
    if (mayEnd.exchange(false)) {
      thread.reset();
      isEnded = true;
    }
  });
  thread = ProgressThread::of(std::move(bell));
  thread->add(group);
  mayEnd = true;
  while (!isEnded || !bellOfThread.expired()) {  // the thread is over, too
    std::this_thread::yield();
  }
}

// On an error, a callback of each group ends all groups of the program.
TEST(ProgressThreads, CallbacksOfTwoGroupsRemoveBothGroups) {
  const auto thread = ProgressThread::of(std::make_shared<BusyBell>());
  std::atomic<int> numInside{0}, numDone{0};
  std::vector<std::shared_ptr<Group>> groups(2);
  std::array<std::atomic<bool>, 2> isOver{};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i] = std::make_shared<Group>([&, i] {
      if (isOver[i].exchange(true)) {
        return;
      }
      std::uint64_t turn = 0;
      thread->enterCallbacks(&turn);
      ++numInside;
      while (numInside < 2) {  // the second thread leads by then
        std::this_thread::yield();
      }
      thread->remove(groups[1 - i].get());
      thread->remove(groups[i].get());
      thread->leaveCallbacks(turn);
      ++numDone;
    });
  }
  thread->add(groups[0]);
  thread->add(groups[1]);
  while (numDone < 2) {
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace shardwire::internal
