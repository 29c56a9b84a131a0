// The engine of rank 0 of two, with the test in the place of rank 1: the test reads the frames to rank 1, and can send
// any frame from rank 1.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "backend/exec/engine.h"
#include "backend/exec/exchange.h"
#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {

class FakeBell final : public ProgressBell {
 public:
  std::uint32_t ticket() const override { return rings_.load(); }
  void sleep(std::uint32_t ticket, Deadline until) override {
    const Deadline soon =
        std::min(until, Clock::now() + std::chrono::milliseconds(1));  // the test's frames ring nothing
    while (rings_.load() == ticket && Clock::now() < soon) {
      std::this_thread::yield();
    }
  }
  void ring() override { ++rings_; }
  std::uint32_t rings() const { return rings_.load(); }

 private:
  std::atomic<std::uint32_t> rings_{0};
};

class FakeDoorbell final : public Doorbell {
 public:
  std::uint32_t arm(Wakes) override { return rings_.load(); }
  void disarm() override {}
  std::uint32_t ticket() const override { return rings_.load(); }
  void sleep(std::uint32_t ticket, Deadline until) override {
    while (rings_.load() == ticket && Clock::now() < until) {
      std::this_thread::yield();
    }
  }
  void ringSelf() override { ++rings_; }
  std::shared_ptr<ProgressBell> progressBell() override { return bell_; }
  void leave() override {}
  const std::shared_ptr<FakeBell>& fakeBell() const { return bell_; }

 private:
  std::atomic<std::uint32_t> rings_{0};
  const std::shared_ptr<FakeBell> bell_ = std::make_shared<FakeBell>();
};

class CountingWire final : public Wire {
 public:
  explicit CountingWire(std::atomic<int>* polls, const std::function<void()>* onPoll = nullptr)
      : polls_(polls), onPoll_(onPoll) {}
  bool poll() override {
    ++*polls_;
    if (onPoll_ != nullptr && *onPoll_) {
      (*onPoll_)();
    }
    return false;
  }
  int readinessFd() const override { return -1; }

 private:
  std::atomic<int>* const polls_;
  const std::function<void()>* const onPoll_;
};

class EngineTest : public ::testing::Test {
 protected:
  // `before` runs before the engine is made, and gets the process of the engine's group.
  explicit EngineTest(const std::function<void(const void* process)>& before = nullptr) {
    Peers peers;
    peers.connections.resize(2);
    peers.connections[1] = std::make_unique<FakeConnection>(1);
    to_ = static_cast<FakeConnection*>(peers.connections[1].get());
    to_->other = &from_;
    from_.other = to_;
    peers.hosts = {0, 0};
    peers.whyNotFaster.resize(2);
    peers.wires.push_back(std::make_unique<CountingWire>(&polls_, &onPoll_));
    auto doorbell = std::make_unique<FakeDoorbell>();
    progressBell_ = doorbell->fakeBell();
    peers.doorbell = std::move(doorbell);
    Options options;
    options.ringBytes = 512;
    options.timeout = std::chrono::seconds(20);
    if (before != nullptr) {
      before(progressBell_.get());
    }
    engine_ = Engine::create(std::move(peers), 0, 2, options, "g").value();
  }
  ~EngineTest() override { engine_->shutdown(); }

  void put(Lane lane, const Bytes& frame) {
    engine_->locked([&](const GroupState&) { from_.sent(lane).push_back(frame); });
  }
  Status statusOnceFailed() {
    const Deadline until = Clock::now() + std::chrono::seconds(10);
    const auto failure = [&] {
      return engine_->locked([](const GroupState& state) { return state.operations.failure(); });
    };
    while (failure().isOk() && Clock::now() < until) {
      std::this_thread::yield();
    }
    return failure();
  }
  // Of the frames to rank 1, the text of the first F.
  template <typename F>
  std::optional<std::string> textOfFirst() {
    std::optional<std::string> text;
    engine_->locked([&](const GroupState&) {
      for (const Bytes& frame : to_->sent(Lane::kControl)) {
        if (const auto found = readFrame<F>(frame); found.has_value() && !text.has_value()) {
          text = std::string(textOf(found->payload));
        }
      }
    });
    return text;
  }
  static std::shared_ptr<Exchange> exchangeOf(std::uint64_t fingerprint) {
    auto exchange = std::make_shared<Exchange>("mine", 2, 0);
    exchange->description = std::make_shared<const std::string>("the exchange");
    exchange->fingerprint = fingerprint;
    return exchange;
  }
  std::shared_ptr<Exchange> submitExchange(std::uint64_t fingerprint) {
    auto exchange = exchangeOf(fingerprint);
    const std::shared_ptr<Activity> activity = exchange;
    EXPECT_TRUE(engine_->submit(std::span(&activity, 1), Duration::zero()).isOk());
    return exchange;
  }

  // The next poll of this thread, or of the progress thread, throws.
  void failNextPoll(bool ofThisThread = true) {
    engine_->locked([&](const GroupState&) {
      onPoll_ = [this, ofThisThread, caller = std::this_thread::get_id()] {
        if ((std::this_thread::get_id() == caller) == ofThisThread) {
          onPoll_ = nullptr;
          throw std::bad_alloc();
        }
      };
    });
  }

  std::atomic<int> polls_{0};     // of the group's wire
  std::function<void()> onPoll_;  // called by each of them, under the engine's lock; set under the lock
  FakeConnection from_{0};        // rank 1's end
  FakeConnection* to_ = nullptr;  // rank 0's
  std::shared_ptr<FakeBell> progressBell_;
  std::shared_ptr<Engine> engine_;
};

}  // namespace shardwire::internal
