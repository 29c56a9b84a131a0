// A caller that waits drives: the caller takes the lock, polls once, releases the lock, and spins for a while before
// sleeping on the doorbell. Where no caller waits, the progress thread does the same without spinning. A call that
// starts a short operation polls a few times before returning, without a look at the clock, since most such operations
// end by then. Operations completed under the lock first leave the lock (takeCompletions), and only then the callbacks
// run (flush), since callbacks and destructors of tensors may call functions of this file. A callback may also wait for
// another operation without driving; so the thread that drives hands the driving over before running callbacks: a
// caller to the progress thread, the progress thread to a follower (ProgressThread). The callbacks that have not
// started are handed over, too (CallbackQueue).
#include "backend/exec/driving.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/base/relax.h"
#include "backend/exec/slow_checks.h"

namespace shardwire::internal {

namespace {

// Between two looks at the clock while spinning: about half a microsecond.
constexpr int kPollsWithoutClock = 8;
// A waiter that has spun for this time offers its core to other threads between polls.
constexpr Duration kYieldAfter = std::chrono::microseconds(3);
// With fewer cores than ranks, the ranks of one core take turns, and a call that starts an operation waits this many
// times longer for the end of the operation. The wait takes no time from other threads: the core is offered before each
// poll.
constexpr int kCrowdedSpins = 4;
// Longest sleep of the progress thread of a group with nothing in flight.
constexpr Duration kIdleSleep = std::chrono::milliseconds(100);

// Counts a thread until end() or the end of the scope.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(&count) { count.fetch_add(1, std::memory_order_seq_cst); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { end(); }
  void end() {
    if (count_ != nullptr) {
      std::exchange(count_, nullptr)->fetch_sub(1, std::memory_order_seq_cst);
    }
  }

 private:
  std::atomic<int>* count_;
};

// A buffer per thread, so that completing allocates nothing; taken away while in use, since callbacks may complete
// further operations.
thread_local std::vector<Activity::Completion> spareCompletions;

}  // namespace

Driving::Driving(Peers& peers, const GroupFacts& facts, OpRecorder& recorder, FailureCallback& callback)
    : peers_(peers),
      failureCallback_(callback),
      progress_(ProgressThread::of(peers.doorbell->progressBell())),
      state_(peers, facts, recorder, callback, hasWork_) {
  // With a core for every rank a hand-off takes 0.2 us when both ranks spin and 5 us when one sleeps. With fewer cores,
  // a spinner that offers its core after every few looks hands over in 1 us, which is still less than sleeping.
  spin_ = facts.options.spin.count() >= 0 ? facts.options.spin : std::chrono::microseconds(200);
  yieldAfter_ = facts.hasCorePerRank ? kYieldAfter : Duration(0);
}

Status Driving::startFailed(const char* why) {
  isStarting_.store(false, std::memory_order_relaxed);
  wakeProgress();
  state_.failure.fail({StatusCode::kSystem, fmt::format("an operation could not be started on {}: {}; the peers wait "
                                                        "for this operation, so the group ends",
                                                        state_.context.label, why)});
  state_.operations.step();
  return state_.operations.failure();
}

// Mostly for want of memory, or a bug. Bytes or a frame may be half processed, so no operation could end as it should.
bool Driving::poll(bool checksSlow) {
  try {
    const bool progress = state_.poll();
    if (checksSlow) {
      checkSlow(state_, !progress);
    }
    return progress;
  } catch (const std::exception& error) {
    pollFailed(error.what());
    return true;
  }
}

void Driving::pollFailed(const char* why) {
  state_.failure.fail({StatusCode::kSystem,
                       fmt::format("a poll failed on {}: {}; the operations in flight cannot end, so the group ends",
                                   state_.context.label, why)});
  state_.operations.step();
}

void Driving::spinFor(const Activity& last, Duration spinLimit) {
  const bool yieldsAlways = yieldAfter_ == Duration::zero();
  const Duration spinInline = std::min<Duration>(yieldsAlways ? kCrowdedSpins * spinLimit : spinLimit, spin_);
  const int numPolls = yieldsAlways ? 1 : kPollsWithoutClock;
  const bool spins = spinInline > Duration::zero();
  const auto pollSome = [&]() SW_REQUIRES(mutex_) {
    for (int i = 0; i < numPolls && !last.isDone(); ++i) {
      if (!state_.poll()) {
        relax();
      }
    }
  };
  if (spins) {
    pollSome();
  }
  if (state_.operations.inFlight().empty()) {
    return;
  }
  const auto started = state_.operations.startClocks();
  const auto until = started + spinInline;
  for (auto now = started; spins && !last.isDone() && now < until; now = Clock::now()) {
    if (now - started >= yieldAfter_) {
      if (!mayYield(now)) {
        return;
      }
      yieldCore(now);
    }
    pollSome();
  }
}

// After a caller's turn at driving. If operations are in flight and no thread waits for these operations, from here on
// a peer's frame wakes the progress thread, or another caller that is asleep. The poll takes the frames that came
// before arming.
void Driving::leaveRest() {
  if (!state_.operations.inFlight().empty() || state_.oneSided.isServing()) {
    peers_.doorbell->arm(Wakes::kAll);
    if (poll(false) && !state_.operations.inFlight().empty()) {
      // Some work may be left that waits for no peer, such as the rest of a long read: no peer rings for such work.
      wakeProgress();
    }
    // The progress thread sleeps for up to 100 ms where nothing was in flight, and no peer may ring.
    if (const auto& inFlight = state_.operations.inFlight();
        !inFlight.empty() && inFlight.back()->deadline < nextIdleLook_.load(std::memory_order_seq_cst)) {
      wakeProgress();
    }
  }
}

void Driving::takeThem(Completions* done) {
  done->hasFailure = state_.failure.takeCallbackDue();
  done->spare = &spareCompletions;
  done->list.swap(spareCompletions);
  done->list.swap(state_.operations.completions());
}

bool Driving::flushThem(Completions* done, Duty duty) {
  if (done->hasFailure) {
    failureCallback_.run();
  }
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    peers_.doorbell->ringSelf();
  }
  bool mayWait = false;
  for (auto& completion : done->list) {
    mayWait |= completion.activity->closeCallbacks();
  }
  if (mayWait && callbacks_.add(&done->list)) {
    progress_->ring();
  }
  // A callback may wait for another operation without driving: the thread that drives hands the driving over first.
  const bool runsQueue = mayWait || callbacks_.isStuck();
  const bool handOver = duty != Duty::kNone && runsQueue;
  std::uint64_t turn = 0;
  if (handOver) {
    stepAside(duty, &turn);
  }
  if (runsQueue) {
    callbacks_.run();
  }
  for (auto& completion : done->list) {
    completion.activity->runCallbacks();
  }
  done->list.clear();
  if (done->spare != nullptr) {
    done->list.swap(*done->spare);
  }
  return !handOver || stepBack(duty, turn);
}

bool Driving::drive(Activity& activity, Deadline until, Patience& patience) {
  Counted driver(drivers_);
  peers_.doorbell->disarm();
  auto lastSlow = patience.now();
  while (!activity.isDone()) {
    Completions done;
    // Decided by the clock, and not by the number of polls: beside other programs a poll may take as long as their time
    // slices.
    const bool looksSlow = patience.now() - lastSlow >= kSlowCheckEvery;
    if (looksSlow) {
      lastSlow = patience.now();
    }
    const bool progress = pollOrNot(looksSlow, &done);
    flush(&done, Duty::kCaller);
    if (progress) {
      patience.moved();
    } else if (!patience.spins() && patience.now() < until) {
      sleepOnBell(activity, until, patience);
    }
    if (patience.now() >= until) {
      break;
    }
  }
  Completions done;
  {
    const MutexLock lock(mutex_);
    driver.end();
    leaveRest();
    takeCompletions(&done);
  }
  flush(&done);
  return activity.isDone();
}

// Called when the caller has spun for long enough: arms the bell, polls once more, and sleeps.
void Driving::sleepOnBell(const Activity& activity, Deadline until, Patience& patience) {
  Completions done;
  Counted sleeper(sleepers_);
  std::uint32_t ticket = 0;
  bool sleeps = false;
  Deadline soonest = until;
  {
    const MutexLock lock(mutex_);
    if (!state_.links.isClosed()) {  // else another thread ends the connections just now, without the lock
      ticket = peers_.doorbell->arm(Wakes::kSleepers);
    }
    const bool progress = poll(true);
    sleeps = !progress && state_.operations.completions().empty() && !activity.isDone() &&
             state_.operations.failure().isOk() && !state_.links.isClosed();
    soonest = std::min({until, activity.deadline, patience.now() + kMaxSleep});
    takeCompletions(&done);
  }
  flush(&done, Duty::kCaller);
  if (sleeps) {
    peers_.doorbell->sleep(ticket, soonest);
    patience.sleptInVain();  // unless the next poll moves something
  } else {
    patience.moved();
  }
}

bool Driving::pollOrNot(bool looksSlow, Completions* done) {
  if (!mutex_.tryLock()) {
    return false;
  }
  const MutexLock lock(mutex_, std::adopt_lock);
  const bool progress = poll(looksSlow);
  takeCompletions(done);
  return progress;
}

void Driving::help() {
  Completions done;
  pollOrNot(false, &done);
  flush(&done);
}

void Driving::stepAside(Duty duty, std::uint64_t* turn) {
  if (duty == Duty::kCaller) {
    drivers_.fetch_sub(1, std::memory_order_seq_cst);
    progress_->ring();
    return;
  }
  progress_->enterCallbacks(turn);
}

bool Driving::stepBack(Duty duty, std::uint64_t turn) {
  if (duty == Duty::kCaller) {
    drivers_.fetch_add(1, std::memory_order_seq_cst);
    return true;
  }
  return progress_->leaveCallbacks(turn);
}

Progressed::Look Driving::lookAsLeader() {
  const auto now = Clock::now();
  const Duration idleSleep = std::min<Duration>(kIdleSleep, peers_.doorbell->longestNap());
  const auto next = nextIdleLook_.load(std::memory_order_relaxed);
  const auto isDriven = [&] {
    return isStarting_.load(std::memory_order_seq_cst) || drivers_.load(std::memory_order_seq_cst) > 0;
  };
  if (isDriven()) {
    // A waiter that ends its turn now sees either how long this thread sleeps, or is seen here. (A call that starts an
    // operation may be missed: then a deadline may be noticed up to 100 ms late.)
    nextIdleLook_.store(now + idleSleep, std::memory_order_seq_cst);
    if (isDriven()) {
      return {.nextLook = now + idleSleep};
    }
  }
  if (now < next && !hasWork_.load(std::memory_order_seq_cst) && callbacks_.isEmpty() &&
      (peers_.late == nullptr || !peers_.late->hasNews())) {
    return {.nextLook = next};
  }
  Completions done;
  bool progress = false;
  bool idle = false;
  {
    const MutexLock lock(mutex_);
    if (state_.isBusy()) {
      peers_.doorbell->arm(Wakes::kProgress);
    }
    // A group with nothing in flight is looked at now and then: peers may ask what this rank does, or report a failure.
    progress = poll(true);
    idle = !state_.isBusy();
    progress = progress && !idle && state_.operations.failure().isOk();  // a failed group sleeps
    hasWork_.store(!idle, std::memory_order_seq_cst);
    nextIdleLook_.store(now + idleSleep, std::memory_order_relaxed);
    takeCompletions(&done);
  }
  if (!flush(&done, Duty::kProgressThread)) {
    return {.lostLead = true};
  }
  idle = idle && !hasWork_.load(std::memory_order_seq_cst);  // a callback may have called an operation
  const Duration sleep = !callbacks_.isEmpty() ? kCallbackPatience
                         : idle                ? idleSleep
                                               : std::min<Duration>(kMaxSleep, idleSleep);
  return {.moved = progress, .nextLook = Clock::now() + sleep};
}

void Driving::wakeProgress() {
  hasWork_.store(true, std::memory_order_seq_cst);
  progress_->ring();
}

}  // namespace shardwire::internal
