// Who moves things along. A caller that waits drives: it takes the lock, polls once, lets go, and spins for a while before it sleeps on the
// doorbell. Where nobody waits the progress thread does the same, without spinning. What completes under the lock is carried out of it
// (takeCompletions) and then told (flush), since callbacks and destructors of tensors may come back here. A callback may also wait for
// another operation without driving; so who drives hands that over before it runs callbacks: a caller to the progress thread, the progress
// thread to a follower (ProgressThread).
#include <algorithm>

#include "backend/base/interrupt.h"
#include "backend/base/patience.h"
#include "backend/exec/engine.h"
#include "backend/exec/one_sided.h"
#include "backend/exec/process_failures.h"

namespace shardwire::internal {

namespace {

// Longest sleep of the progress thread of a group with nothing in flight.
constexpr Duration kIdleSleep = std::chrono::milliseconds(100);

}  // namespace

namespace {

// A buffer per thread, so that completing allocates nothing; taken away while in use, since callbacks may come back here.
thread_local std::vector<Activity::Completion> spareCompletions;

}  // namespace

void Engine::takeThem(Completions* done) {
  done->hasFailure = std::exchange(failureDue_, false);
  done->spare = &spareCompletions;
  done->list.swap(spareCompletions);
  done->list.swap(operations_.completions());
}

bool Engine::flushThem(Completions* done, Driving driving) {
  if (done->hasFailure) {
    failureCallback_.run();
  }
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    peers_.doorbell->ringSelf();
  }
  // A callback may wait for another operation in a way that drives nothing: whoever drives hands that over first.
  const bool handOver = driving != Driving::kNo && std::any_of(done->list.begin(), done->list.end(),
                                                               [](const auto& completion) { return completion.activity->hasCallbacks(); });
  std::uint64_t turn = 0;
  if (handOver) {
    stepAside(driving, &turn);
  }
  for (auto& completion : done->list) {
    completion.activity->runCallbacks(completion.status);
  }
  done->list.clear();
  done->list.swap(*done->spare);
  return !handOver || stepBack(driving, turn);
}

Status Engine::waitFor(Activity& activity, Deadline until) {
  if (!owner_.isHere()) {
    return owner_.check(groupLabel());
  }
  InterruptibleWait slices(until);
  Patience patience(spin_, yieldAfter_);  // of the whole wait: the next slice goes on sleeping where this one slept
  while (!drive(activity, slices.sliceEnd(), patience)) {
    if (slices.isInterrupted()) {
      interruptedWaits_.add(activity.shared_from_this());
      return interruptedStatus(*activity.description + " (" + groupLabel() + ")");
    }
    if (Clock::now() >= until) {
      return {StatusCode::kTimeout,
              *activity.description + " is still in flight: the wait ended first, the operation goes on (" + groupLabel() + ")"};
    }
  }
  Status status = activity.status();
  if (!status.isOk()) {
    failureCallback_.run();  // another thread may have noticed it, and be on its way to do so
  }
  return status;
}

bool Engine::drive(Activity& activity, Deadline until, Patience& patience) {
  drivers_.fetch_add(1, std::memory_order_seq_cst);
  peers_.doorbell->disarm();
  auto lastSlow = patience.now();
  while (!activity.isDone()) {
    Completions done;
    // By the clock, and not by the number of polls: beside other programs a poll may take as long as their slices.
    const bool looksSlow = patience.now() - lastSlow >= kSlowCheckEvery;
    if (looksSlow) {
      lastSlow = patience.now();
    }
    const bool progress = pollOrNot(looksSlow, &done);
    flush(&done, Driving::kCaller);
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
    stopDriving();
    takeCompletions(&done);
  }
  flush(&done);
  return activity.isDone();
}

// Spun enough: arm, look once more, sleep.
void Engine::sleepOnBell(const Activity& activity, Deadline until, Patience& patience) {
  Completions done;
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  std::uint32_t ticket = 0;
  bool sleeps = false;
  Deadline soonest = until;
  {
    const MutexLock lock(mutex_);
    ticket = peers_.doorbell->arm(Wakes::kSleepers);
    const bool progress = pollLocked();
    checkSlow(!progress);
    sleeps = !progress && operations_.completions().empty() && !activity.isDone() && !operations_.failure().has_value();
    soonest = std::min({until, activity.deadline, patience.now() + kMaxSleep});
    takeCompletions(&done);
  }
  flush(&done, Driving::kCaller);
  if (sleeps) {
    peers_.doorbell->sleep(ticket, soonest);
    patience.sleptInVain();  // unless the next poll moves something
  } else {
    patience.moved();
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

// Polls unless another thread does.
bool Engine::pollOrNot(bool looksSlow, Completions* done) {
  if (!mutex_.tryLock()) {
    return false;
  }
  const MutexLock lock(mutex_, std::adopt_lock);
  const bool progress = pollLocked();
  if (looksSlow) {
    checkSlow(!progress);
  }
  takeCompletions(done);
  return progress;
}

void Engine::stepAside(Driving driving, std::uint64_t* turn) {
  if (driving == Driving::kCaller) {
    drivers_.fetch_sub(1, std::memory_order_seq_cst);
    progress_->ring();
    return;
  }
  progress_->enterCallbacks(turn);
}

bool Engine::stepBack(Driving driving, std::uint64_t turn) {
  if (driving == Driving::kCaller) {
    drivers_.fetch_add(1, std::memory_order_seq_cst);
    return true;
  }
  return progress_->leaveCallbacks(turn);
}

Progressed::Look Engine::lookAsLeader() {
  const auto now = Clock::now();
  const Duration idleSleep = std::min<Duration>(kIdleSleep, peers_.doorbell->longestNap());
  if (drivers_.load(std::memory_order_seq_cst) > 0) {
    return {.nextLook = now + idleSleep};
  }
  if (const auto next = nextIdleLook_.load(std::memory_order_relaxed);
      now < next && !hasWork_.load(std::memory_order_seq_cst) && (peers_.late == nullptr || !peers_.late->hasNews())) {
    return {.nextLook = next};
  }
  Completions done;
  bool progress = false;
  bool idle = false;
  {
    const MutexLock lock(mutex_);
    if (!operations_.inFlight().empty() || hasNotices_ || oneSided_->isServing()) {
      peers_.doorbell->arm(Wakes::kProgress);
    }
    // A group with nothing in flight is looked at now and then: peers may ask what this rank does, or tell that they failed.
    progress = pollLocked();
    checkSlow(!progress);
    // Who serves its memory is asked by peers at any time.
    idle = operations_.inFlight().empty() && !hasNotices_ && !oneSided_->isServing();
    progress = progress && !idle && !operations_.failure().has_value();  // a failed group sleeps
    hasWork_.store(!idle, std::memory_order_seq_cst);
    nextIdleLook_.store(now + idleSleep, std::memory_order_relaxed);
    takeCompletions(&done);
  }
  if (!flush(&done, Driving::kProgressThread)) {
    return {.lostLead = true};
  }
  idle = idle && !hasWork_.load(std::memory_order_seq_cst);  // a callback may have called an operation
  return {.moved = progress, .nextLook = Clock::now() + (idle ? idleSleep : std::min<Duration>(kMaxSleep, idleSleep))};
}

// The progress thread looks at this group at once, idle or not.
void Engine::wakeProgress() {
  hasWork_.store(true, std::memory_order_seq_cst);
  progress_->ring();
}

void Engine::shutdown() {
  const MutexLock guard(shutdownMutex_);
  if (stopped_) {
    return;
  }
  stopped_ = true;
  failureCallback_.run();
  {
    const MutexLock lock(mutex_);
    tellAdvice(true);
    removeProcessGroup(this);  // now: from here on it keeps no other group waiting, however long it stays for who comes late
  }
  tellLateComers();
  Completions done;
  {
    const MutexLock lock(mutex_);
    removeProcessGroup(this);  // it may have failed meanwhile
    if (operations_.failure().has_value() && !failNotice_.empty()) {
      peers_.doorbell->leaveWord({operations_.failure()->code(), failNotice_});
    }
    poison({StatusCode::kAborted, "the group was shut down on " + groupLabel()}, false);
    pollLocked();
    takeCompletions(&done);
  }
  flush(&done);
  progress_->remove(this);
  peers_.doorbell->leave();
  closeConnections();
}

// Who still holds the engine, a compiled op in Python's hands say, must not keep the links open: over a wire their end is what tells the
// peers that this rank left. Not under the lock, since a farewell may take a moment.
void Engine::closeConnections() {
  std::vector<std::unique_ptr<Connection>> closing;
  std::unique_ptr<LateLinks> late;
  {
    const MutexLock lock(mutex_);
    isClosed_ = true;
    for (auto& connection : peers_.connections) {
      closing.push_back(std::move(connection));
    }
    late = std::move(peers_.late);  // and nobody is let in any more
  }
}

}  // namespace shardwire::internal
