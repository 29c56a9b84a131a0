// A thread of the product waits in two places: the caller on the doorbell of a group, and the progress thread on the
// progress bell. Here the doorbell pauses the caller's fiber, and rings or the end of the sleep schedule the next
// resumption. The product's own progress thread sleeps on its bell for ever (bell.h); the process calls the engines in
// its place, at the times that the engines name, and when the bell rings.
#include "tests/simulate/process.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace shardwire::simulate {
namespace {

using internal::Doorbell;
using internal::ProgressBell;
using internal::Wakes;

// From a ring to the woken thread's next instruction.
constexpr Time kShortestWake = 2 * kMicrosecond;
constexpr Time kLongestWake = 60 * kMicrosecond;
// A poll takes time in which the clock is not read.
constexpr Time kPoll = 200;
// The longest sleep of the progress thread.
constexpr Time kLongestIdle = 100 * kMillisecond;

Process* turnOf = nullptr;

}  // namespace

class Process::Door final : public Doorbell {
 public:
  Door(Process& process, std::size_t group) : process_(process), group_(group), bell_(process.bells_[group]) {}
  std::uint32_t arm(Wakes whom) override {
    bell_.armed |= static_cast<std::uint32_t>(whom);
    bell_.armedAt = process_.time_;
    bell_.armedAfter = process_.world_.numEvents();
    return bell_.rings;
  }
  void disarm() override { bell_.armed = 0; }
  std::uint32_t ticket() const override { return bell_.rings; }
  void sleep(std::uint32_t ticket, Deadline until) override { process_.sleepOnBell(group_, ticket, timeOf(until)); }
  void ringSelf() override {
    ++bell_.rings;
    for (const auto& thread : process_.threads_) {
      if (thread->sleepsOn == static_cast<int>(group_)) {
        process_.wakeAt(*thread, std::max(process_.time_, process_.world_.now()) + process_.drawWake());
      }
    }
  }
  std::shared_ptr<ProgressBell> progressBell() override { return process_.progressBell_; }
  void leave() override {}

 private:
  Process& process_;
  const std::size_t group_;
  Bell& bell_;
};

Process::Process(World& world, Rank rank, std::size_t numGroups)
    : world_(world), rank_(rank), time_(world.now()), bells_(numGroups) {}

void Process::addThread(std::function<void()> main) {
  if (progressBell_ == nullptr) {
    progressBell_ = ParkedBell::take([this] { ringProgressSoon(std::max(time_, world_.now())); });
  }
  threads_.push_back(std::make_unique<Thread>([this, main = std::move(main)] {
    main();
    if (++numEnded_ == threads_.size()) {
      engines_.clear();
      progressBell_->giveBack();
    }
  }));
  wakeAt(*threads_.back(), world_.now() + world_.random().between(0, kMillisecond));
}

bool Process::isOver() const {
  return std::ranges::all_of(threads_, [](const auto& thread) { return thread->fiber.isOver(); });
}

std::unique_ptr<Doorbell> Process::makeDoorbell(std::size_t group) {
  return std::make_unique<Door>(*this, group);
}

void Process::serve(std::weak_ptr<internal::Progressed> engine) {
  engines_.push_back(std::move(engine));
  lookAt(time_ + kLongestWake);
}

void Process::setIsWaiting(std::size_t group, std::function<bool()> isWaiting) {
  bells_[group].isWaiting = std::move(isWaiting);
}

// ---- the threads' turns

Time Process::readyAt() const {
  return std::max(time_, stoppedUntil_);
}

Time Process::drawWake() {
  return world_.random().between(kShortestWake, kLongestWake);
}

template <typename Part>
void Process::spend(Part part) {
  time_ = world_.now() + kPoll;
  const SimulatedTime mine(&time_, &sleep_);
  Process* const before = std::exchange(turnOf, this);
  part();
  turnOf = before;
}

Process* Process::running() {
  return turnOf;
}

// Earlier than the thread would go on by itself, or not at all.
void Process::wakeAt(Thread& thread, Time when) {
  if (when < thread.wakeAt) {
    thread.wakeAt = when;
    world_.at(when, [this, &thread, number = ++thread.wakeNumber] { resume(thread, number); });
  }
}

void Process::pauseUntil(Time when) {
  Thread& mine = *current_;
  mine.wakeAt = kNever;
  wakeAt(mine, when);
  mine.fiber.pause();
}

void Process::resume(Thread& thread, std::uint64_t number) {
  if (number != thread.wakeNumber || isDead() || thread.fiber.isOver()) {
    return;
  }
  if (world_.now() < readyAt()) {
    thread.wakeAt = kNever;
    wakeAt(thread, readyAt());
    return;
  }
  thread.sleepsOn = -1;
  current_ = &thread;
  spend([&] { thread.fiber.resume(); });
  current_ = nullptr;
}

void Process::computeFor(Time duration) {
  if (isCleared_) {
    time_ += duration;
  } else {
    pauseUntil(time_ + duration);
  }
}

void Process::sleepOnBell(std::size_t group, std::uint32_t ticket, Time until) {
  if (isCleared_ || bells_[group].rings != ticket || until <= time_) {
    time_ = isCleared_ && until != kNever ? std::max(time_, until) : time_ + kPoll;
    return;
  }
  current_->sleepsOn = static_cast<int>(group);
  pauseUntil(until);
}

void Process::lookAt(Time when) {
  nextLook_ = std::min(nextLook_, when);
  if (nextLook_ == when) {
    world_.at(when, [this, number = ++lookNumber_] { look(number); });
  }
}

void Process::look(std::uint64_t number) {
  if (number != lookNumber_ || isDead()) {
    return;
  }
  nextLook_ = kNever;
  std::erase_if(engines_, [](const auto& each) { return each.expired(); });
  if (engines_.empty()) {
    return;
  }
  if (world_.now() < readyAt()) {
    lookAt(readyAt());
    return;
  }
  hasRungProgress_ = false;
  isLooking_ = true;
  bool goesOn = false;
  Time next = kNever;
  spend([&] {
    for (const auto& each : engines_) {
      if (const auto engine = each.lock()) {
        const internal::Progressed::Look look = engine->lookAsLeader();
        goesOn |= look.moved;
        next = std::min(next, timeOf(look.nextLook));
      }
    }
  });
  isLooking_ = false;
  goesOn |= hasRungProgress_;
  lookAt(goesOn ? time_ + kPoll : std::max(time_ + kPoll, std::min(next, time_ + kLongestIdle)));
}

// ---- rings and faults

// While the progress thread looks, a ring lets the thread look once more.
void Process::ringProgress(Time when) {
  hasRungProgress_ = true;
  if (!isLooking_) {
    lookAt(when);
  }
}

void Process::ringProgressSoon(Time now) {
  hasRungProgress_ = true;
  if (!isLooking_) {
    lookAt(now + drawWake());
  }
}

void Process::ringIfArmed(std::size_t group, Time since, std::uint64_t numEvents) {
  if (bells_[group].armedAt <= since || bells_[group].armedAfter <= numEvents) {
    ringIfArmed(group);
  }
}

void Process::ringIfArmed(std::size_t group) {
  Bell& bell = bells_[group];
  if (bell.armed == 0 || isDead()) {
    return;
  }
  const std::uint32_t armed = std::exchange(bell.armed, 0);
  const Time wakes = world_.now() + drawWake();
  if ((armed & static_cast<std::uint32_t>(Wakes::kSleepers)) != 0) {
    ++bell.rings;
    for (const auto& thread : threads_) {
      if (thread->sleepsOn == static_cast<int>(group)) {
        wakeAt(*thread, wakes);
      }
    }
  }
  if ((armed & static_cast<std::uint32_t>(Wakes::kProgress)) != 0) {
    ringProgress(wakes);
  }
}

// A caller that sleeps is woken by a ring, and else only by its own clock; while no caller drives the group, the
// progress thread looks when rung.
void Process::checkWakes(std::size_t group, Time since, const std::function<std::string()>& frame) {
  if (isDead() || isOver() || !missedWake_.empty()) {
    return;
  }
  const Time soon = std::max(world_.now(), readyAt()) + kLongestWake;
  const auto sleeper =
      std::ranges::find(threads_, static_cast<int>(group), [](const auto& thread) { return thread->sleepsOn; });
  const bool isCallers = sleeper != threads_.end();
  // A thread that is about to go on may poll the group.
  const bool isThreads =
      !isCallers && bells_[group].isWaiting() && std::ranges::none_of(threads_, [&](const auto& each) {
        return each->sleepsOn < 0 && !each->fiber.isOver() && each->wakeAt <= soon;
      });
  if ((isCallers && (*sleeper)->wakeAt > soon) || (isThreads && nextLook_ > soon)) {
    missedWake_ = fmt::format("{} {} sleeps until {} on {}, which arrived at {}", world_.rowName(), rank_,
                              inMilliseconds(world_.elapsed(isCallers ? (*sleeper)->wakeAt : nextLook_)), frame(),
                              inMilliseconds(world_.elapsed(since)));
  }
}

void Process::ringForNews(std::size_t group) {
  ringIfArmed(group);
  if (!isDead() && !isOver()) {
    ringProgressSoon(world_.now());
  }
}

void Process::countFrame() {
  if (framesLeft_ > 0 && --framesLeft_ == 0) {
    end_();
  }
}

void Process::stopUntil(Time when) {
  stoppedUntil_ = std::max(stoppedUntil_, when);
}

void Process::act(std::function<void()> action) {
  world_.at(readyAt(), [this, action = std::move(action)] {
    if (world_.now() < readyAt()) {
      act(action);
    } else if (!isDead() && !isOver()) {
      spend(action);
    }
  });
}

void Process::endAfterFrames(int numFrames, std::function<void()> end) {
  framesLeft_ = numFrames;
  end_ = std::move(end);
}

void Process::die() {
  diedAt_ = std::max(time_, world_.now());
}

void Process::clear(const std::function<void()>& reset) {
  if (isOver()) {
    return;
  }
  isCleared_ = true;
  spend([&] {
    reset();
    for (const auto& thread : threads_) {
      current_ = thread.get();
      if (!thread->fiber.isOver()) {
        thread->fiber.resume();
      }
    }
  });
}

}  // namespace shardwire::simulate
