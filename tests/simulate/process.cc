// A thread of the product waits in two places: the caller on the doorbell, and the progress thread on the progress
// bell. Here the doorbell pauses the caller's fiber, and rings or the end of the sleep schedule the next resumption.
// The product's own progress thread sleeps on its bell for ever (Bell); the process calls the engine in its place, at
// the times that the engine names, and when the bell rings.
#include "tests/simulate/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

namespace shardwire::simulate {
namespace {

using internal::Doorbell;
using internal::ProgressBell;
using internal::ProgressThread;
using internal::Wakes;

// From a ring to the woken thread's next instruction.
constexpr Time kShortestWake = 2 * kMicrosecond;
constexpr Time kLongestWake = 60 * kMicrosecond;
// A poll takes time in which the clock is not read.
constexpr Time kPoll = 200;
// The longest sleep of the progress thread.
constexpr Time kLongestIdle = 100 * kMillisecond;

}  // namespace

// Where the product's progress thread sleeps while the simulation does the thread's work. Kept for all simulations of
// this program: threads start and end in real time.
class Parking {
 public:
  // Returns when `isOver`.
  void sleep() {
    std::unique_lock lock(mutex_);
    isParked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return isOver_; });
  }
  void waitUntilParked() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return isParked_; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    isOver_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool isParked_ = false;
  bool isOver_ = false;
};

class Process::Bell final : public ProgressBell {
 public:
  std::uint32_t ticket() const override { return 0; }
  void sleep(std::uint32_t, Deadline) override { parking_.sleep(); }
  void ring() override {
    if (process != nullptr) {
      process->hasRungProgress_ = true;
      if (!process->isLooking_) {
        process->lookAt(process->time_ + process->world_.random().between(kShortestWake, kLongestWake));
      }
    }
  }
  static std::shared_ptr<Bell> take();

  Process* process = nullptr;

 private:
  Parking parking_;
  friend struct Threads;
};

// The bells with their parked threads, to be used again by the next simulation.
struct Threads {
  struct Parked {
    std::shared_ptr<Process::Bell> bell;
    std::shared_ptr<ProgressThread> thread;
  };
  std::vector<Parked> all;

  ~Threads() {
    for (Parked& each : all) {
      each.bell->parking_.end();
      each.thread.reset();
    }
  }
};

std::shared_ptr<Process::Bell> Process::Bell::take() {
  static Threads threads;
  for (const auto& each : threads.all) {
    if (each.bell->process == nullptr) {
      return each.bell;
    }
  }
  auto bell = std::make_shared<Bell>();
  threads.all.push_back({bell, ProgressThread::of(bell)});
  bell->parking_.waitUntilParked();
  return bell;
}

class Process::Door final : public Doorbell {
 public:
  explicit Door(Process& process) : process_(process) {}
  std::uint32_t arm(Wakes whom) override {
    process_.armed_ |= static_cast<std::uint32_t>(whom);
    process_.armedAt_ = process_.time_;
    process_.armedAfter_ = process_.world_.numEvents();
    return process_.rings_;
  }
  void disarm() override { process_.armed_ = 0; }
  std::uint32_t ticket() const override { return process_.rings_; }
  void sleep(std::uint32_t ticket, Deadline until) override { process_.sleepOnBell(ticket, timeOf(until)); }
  void ringSelf() override {
    ++process_.rings_;
    if (process_.sleepsOnBell_) {
      process_.wakeAt(process_.time_ + process_.world_.random().between(kShortestWake, kLongestWake));
    }
  }
  std::shared_ptr<ProgressBell> progressBell() override { return process_.bell_; }
  void leave() override {}

 private:
  Process& process_;
};

Process::Process(World& world, Rank rank, std::function<void()> main)
    : world_(world), rank_(rank), time_(world.now()), fiber_([this, main = std::move(main)] {
        main();
        engine_.reset();
        bell_->process = nullptr;
      }) {
  bell_ = Bell::take();
  bell_->process = this;
  wakeAt(world.now() + world.random().between(0, kMillisecond));
}

std::unique_ptr<Doorbell> Process::makeDoorbell() {
  return std::make_unique<Door>(*this);
}

void Process::serve(std::weak_ptr<internal::Progressed> engine) {
  engine_ = std::move(engine);
  lookAt(time_ + kLongestWake);
}

// ---- the threads' turns

Time Process::readyAt() const {
  return std::max(time_, stoppedUntil_);
}

template <typename Part>
void Process::spend(Part part) {
  time_ = world_.now() + kPoll;
  const SimulatedTime mine(&time_, &sleep_);
  part();
}

// Earlier than the caller would go on by itself, or not at all.
void Process::wakeAt(Time when) {
  if (when < wakeAt_) {
    wakeAt_ = when;
    world_.at(when, [this, number = ++wakeNumber_] { resume(number); });
  }
}

void Process::pauseUntil(Time when) {
  wakeAt_ = kNever;
  wakeAt(when);
  fiber_.pause();
}

void Process::resume(std::uint64_t number) {
  if (number != wakeNumber_ || isDead_ || isOver()) {
    return;
  }
  if (world_.now() < readyAt()) {
    wakeAt_ = kNever;
    wakeAt(readyAt());
    return;
  }
  sleepsOnBell_ = false;
  spend([this] { fiber_.resume(); });
}

void Process::computeFor(Time duration) {
  if (isCleared_) {
    time_ += duration;
  } else {
    pauseUntil(time_ + duration);
  }
}

void Process::sleepOnBell(std::uint32_t ticket, Time until) {
  if (isCleared_ || rings_ != ticket || until <= time_) {
    time_ = isCleared_ && until != kNever ? std::max(time_, until) : time_ + kPoll;
    return;
  }
  sleepsOnBell_ = true;
  pauseUntil(until);
}

void Process::lookAt(Time when) {
  nextLook_ = std::min(nextLook_, when);
  if (nextLook_ == when) {
    world_.at(when, [this, number = ++lookNumber_] { look(number); });
  }
}

void Process::look(std::uint64_t number) {
  if (number != lookNumber_ || isDead_) {
    return;
  }
  nextLook_ = kNever;
  const auto engine = engine_.lock();
  if (engine == nullptr) {
    return;
  }
  if (world_.now() < readyAt()) {
    lookAt(readyAt());
    return;
  }
  hasRungProgress_ = false;
  isLooking_ = true;
  internal::Progressed::Look next;
  spend([&] { next = engine->lookAsLeader(); });
  isLooking_ = false;
  const bool goesOn = next.moved || hasRungProgress_;
  lookAt(goesOn ? time_ + kPoll : std::max(time_ + kPoll, std::min(timeOf(next.nextLook), time_ + kLongestIdle)));
}

// ---- rings and faults

void Process::ringIfArmed(Time since, std::uint64_t numEvents) {
  if (armedAt_ <= since || armedAfter_ <= numEvents) {
    ringIfArmed();
  }
}

void Process::ringIfArmed() {
  if (armed_ == 0 || isDead_) {
    return;
  }
  const std::uint32_t armed = std::exchange(armed_, 0);
  const Time wakes = world_.now() + world_.random().between(kShortestWake, kLongestWake);
  if ((armed & static_cast<std::uint32_t>(Wakes::kSleepers)) != 0) {
    ++rings_;
    if (sleepsOnBell_) {
      wakeAt(wakes);
    }
  }
  if ((armed & static_cast<std::uint32_t>(Wakes::kProgress)) != 0) {
    hasRungProgress_ = true;
    if (!isLooking_) {
      lookAt(wakes);
    }
  }
}

// A caller that sleeps is woken by a ring, and else only by its own clock; while no caller drives, the progress thread
// looks when rung.
void Process::checkWakes(Time since, const std::string& frame) {
  const Time soon = std::max(world_.now(), readyAt()) + kLongestWake;
  const bool isCallers = sleepsOnBell_ && !isDead_;
  const bool isThreads = !sleepsOnBell_ && !isDead_ && !isOver() && isWaiting_() && wakeAt_ > soon;
  if (missedWake_.empty() && ((isCallers && wakeAt_ > soon) || (isThreads && nextLook_ > soon))) {
    missedWake_ = fmt::format("rank {} sleeps until {} on {}, which arrived at {}", rank_,
                              inMilliseconds(world_.elapsed(isCallers ? wakeAt_ : nextLook_)), frame,
                              inMilliseconds(world_.elapsed(since)));
  }
}

void Process::ringForNews() {
  ringIfArmed();
  if (!isDead_ && bell_->process == this) {
    hasRungProgress_ = true;
    if (!isLooking_) {
      lookAt(world_.now() + world_.random().between(kShortestWake, kLongestWake));
    }
  }
}

void Process::stopUntil(Time when) {
  stoppedUntil_ = std::max(stoppedUntil_, when);
}

void Process::act(std::function<void()> action) {
  world_.at(readyAt(), [this, action = std::move(action)] {
    if (world_.now() < readyAt()) {
      act(action);
    } else if (!isDead_ && !isOver()) {
      spend(action);
    }
  });
}

void Process::die() {
  isDead_ = true;
}

void Process::clear(const std::function<void()>& reset) {
  if (isOver()) {
    return;
  }
  isCleared_ = true;
  spend([&] {
    reset();
    fiber_.resume();
  });
}

}  // namespace shardwire::simulate
