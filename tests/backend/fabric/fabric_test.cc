// The thread of the fabric begins a new part and answers at a new Unix socket, at whatever point of the loop the thread
// is. Then watched descriptors in children of fork().
#include "backend/fabric/fabric.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "backend/fabric/proof.h"

namespace shardwire::internal {
namespace {

// A part that is asked for work as ShmDialer is: the next serve() takes the work.
class Asked final : public FabricPart {
 public:
  explicit Asked(std::atomic<bool>* isServed) : isServed_(isServed) {}
  void ask() { isAsked_ = true; }

  void begin() override { hasBegun_ = true; }
  void end() override {}
  bool appendSockets(std::vector<pollfd>*) override { return false; }
  void serve() override {
    EXPECT_TRUE(hasBegun_);
    *isServed_ = *isServed_ || isAsked_;
  }
  void guestLeft() override {}
  HostWelcome welcome() override { return {}; }

 private:
  std::atomic<bool>* const isServed_;
  std::atomic<bool> isAsked_{false};
  bool hasBegun_ = false;
};

// Holds the thread between the look for the Unix socket and the sleep.
class Holding final : public FabricPart {
 public:
  Holding(std::atomic<bool>* isInside, const std::atomic<bool>* mayLeave) : isInside_(isInside), mayLeave_(mayLeave) {}

  void begin() override {}
  void end() override {}
  bool appendSockets(std::vector<pollfd>*) override {
    *isInside_ = true;
    while (!*mayLeave_) {
      std::this_thread::yield();
    }
    return false;
  }
  void serve() override {}
  void guestLeft() override {}
  HostWelcome welcome() override { return {}; }

 private:
  std::atomic<bool>* const isInside_;
  const std::atomic<bool>* const mayLeave_;
};

// The result of `look`, 0 to 255, in a forked child; -1: the child ended in another way.
int resultInChild(const std::function<int()>& look) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);  // a hang is a failure
    ::_exit(look());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool becomesTrue(const std::atomic<bool>& flag) {
  const Deadline until = Clock::now() + std::chrono::seconds(20);
  while (!flag && Clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return flag;
}

// The thread has left its sleep, and reads the wake-ups only after the part was made and asked for work.
TEST(Fabric, ServesAPartThatIsAskedBeforeTheThreadSawThePart) {
  std::atomic<bool> isServed{false};
  std::atomic<bool> isInside{false};
  std::atomic<bool> mayLeave{false};
  const Fd event(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  {
    auto fabric = Fabric::instance();
    ASSERT_TRUE(fabric.isOk()) << fabric.status().message();
    auto watch = FdWatch::create((*fabric)->watches(), event.get(), EPOLLIN, [&] {
      isInside = true;
      while (!mayLeave) {
        std::this_thread::yield();
      }
      return false;
    });
    ASSERT_TRUE(watch.isOk());
    (*fabric)->wake();
    ASSERT_TRUE((*fabric)->start().isOk());
    EXPECT_TRUE(becomesTrue(isInside));
    auto part = (*fabric)->part(
        [&]() -> Result<std::unique_ptr<FabricPart>> { return std::unique_ptr<FabricPart>(new Asked(&isServed)); });
    ASSERT_TRUE(part.isOk());
    static_cast<Asked*>(*part)->ask();
    (*fabric)->wake();
    mayLeave = true;
    EXPECT_TRUE(becomesTrue(isServed));
    watch->reset();
  }
}

TEST(Fabric, AnswersAtASocketThatIsMadeBeforeTheThreadSleeps) {
  std::atomic<bool> isInside{false};
  std::atomic<bool> mayLeave{false};
  auto fabric = Fabric::instance();
  ASSERT_TRUE(fabric.isOk()) << fabric.status().message();
  const auto part = (*fabric)->part([&]() -> Result<std::unique_ptr<FabricPart>> {
    return std::unique_ptr<FabricPart>(new Holding(&isInside, &mayLeave));
  });
  ASSERT_TRUE(part.isOk());
  ASSERT_TRUE((*fabric)->start().isOk());
  EXPECT_TRUE(becomesTrue(isInside));
  const Status listens = (*fabric)->listen("");
  mayLeave = true;
  ASSERT_TRUE(listens.isOk()) << listens.message();
  const Deadline until = Clock::now() + std::chrono::seconds(20);
  const auto socket = dialProcess((*fabric)->address().socketName, until);
  ASSERT_TRUE(socket.isOk()) << socket.status().message();
  ASSERT_TRUE(askForSecret(*socket, makeHostToken((*fabric)->address().token, ""), until).isOk());
  const auto secret = receiveSecret(*socket, until);
  ASSERT_TRUE(secret.isOk()) << secret.status().message();
  EXPECT_EQ(*secret, (*fabric)->secret());
}

TEST(FdWatches, AreClosedInChildren) {
  const auto watches = FdWatches::create();
  ASSERT_TRUE(watches.isOk()) << watches.status().message();
  const int number = (*watches)->socket().get();
  EXPECT_EQ(resultInChild([&] { return ::fcntl(number, F_GETFD) == -1 ? 7 : 8; }), 7);
  EXPECT_GE(::fcntl(number, F_GETFD), 0);
}

// The lock of the set is held during the fork, like the lock of a thread without a copy in the child.
TEST(FdWatches, OfAParentAreDroppedInAChildWithoutTheLock) {
  const auto watches = FdWatches::create();
  ASSERT_TRUE(watches.isOk()) << watches.status().message();
  const Fd ready(::eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK));
  const Fd silent(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  auto dropped = FdWatch::create(*watches, silent.get(), EPOLLIN, [] { return false; });
  int result = -1;
  const auto forks = FdWatch::create(*watches, ready.get(), EPOLLIN, [&] {
    result = resultInChild([&] {
      dropped->reset();
      return 7;
    });
    return false;
  });
  ASSERT_TRUE(dropped.isOk() && forks.isOk());
  (*watches)->serve();
  EXPECT_EQ(result, 7);
}

}  // namespace
}  // namespace shardwire::internal
