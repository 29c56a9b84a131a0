#include "backend/fabric/fabric.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <chrono>
#include <thread>

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

}  // namespace
}  // namespace shardwire::internal
