// Moves the operations of a group along, on the thread of a waiting caller, or else on the process's progress thread.
// Holds the group's lock and everything that the lock guards, and passes completed operations on, whose callbacks run
// outside of the lock. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/patience.h"
#include "backend/base/relax.h"
#include "backend/exec/callback_queue.h"
#include "backend/exec/failure_callback.h"
#include "backend/exec/group_state.h"
#include "backend/exec/progress_thread.h"

namespace shardwire::internal {

class Driving {
 public:
  Driving(Peers& peers, const GroupFacts& facts, OpRecorder& recorder, FailureCallback& callback);
  Driving(const Driving&) = delete;
  Driving& operator=(const Driving&) = delete;

  // Returns action(state), under the lock. `action` must not wait, and completes no operation.
  template <typename Action>
  auto locked(Action&& action) {
    const MutexLock lock(mutex_);
    return action(state_);
  }
  template <typename Action>
  auto locked(Action&& action) const {
    const MutexLock lock(mutex_);
    return action(state_);
  }
  // False, without a call, while another thread has the lock.
  template <typename Action>
  bool tryLocked(Action&& action) {
    if (!mutex_.tryLock()) {
      return false;
    }
    const MutexLock lock(mutex_, std::adopt_lock);
    action(state_);
    return true;
  }
  // As locked(), and runs the callbacks of the operations that `action` completed. `action` may poll; an exception
  // fails the group.
  template <typename Action>
  void act(Action&& action) {
    Completions done;
    {
      const MutexLock lock(mutex_);
      try {
        action(state_);
      } catch (const std::exception& error) {
        pollFailed(error.what());
      }
      takeCompletions(&done);
    }
    flush(&done);
  }
  // Whether a group that has failed refuses the start, or takes the operations, which fail at once. The latter is for a
  // call that began before the failure: its error is the operation's.
  enum class IfFailed : bool { kRefuse, kTake };
  // Starts operations by begin(state), which returns the last one, or null. Polls until this one is done, for
  // `spinInline` at most; polls once for null. Then sets the deadlines of the operations that are left. After an error
  // nothing of them is in flight.
  template <typename Begin>
  Status start(Begin&& begin, Duration spinInline, IfFailed ifFailed = IfFailed::kRefuse) {
    Completions done;
    Status status;
    {
      const MutexLock lock(mutex_);
      if (ifFailed == IfFailed::kRefuse && !state_.operations.failure().isOk()) {
        return state_.operations.refusal();
      }
      // This thread counts as a driver from here on: the progress thread must not arm the bell for an operation that is
      // over in a moment, or every frame costs the peer a wake-up. Relaxed: the progress thread arms under the lock.
      isStarting_.store(true, std::memory_order_relaxed);
      try {
        const Activity* const last = begin(state_);
        // Mostly the mark is set already, and a store that all threads must see at once is not free. Only a holder of
        // the lock clears the mark.
        if (!hasWork_.load(std::memory_order_relaxed)) {
          hasWork_.store(true, std::memory_order_seq_cst);
        }
        if (last != nullptr) {
          state_.operations.step();  // the frames leave first
        }
        if (last == nullptr || last->isDone() || spinInline == Duration::zero()) {
          state_.poll();  // else spinFor() does
        }
        if (!state_.operations.inFlight().empty()) {
          last == nullptr ? static_cast<void>(state_.operations.startClocks()) : spinFor(*last, spinInline);
        }
        isStarting_.store(false, std::memory_order_relaxed);
        leaveRest();
      } catch (const std::exception& error) {
        status = startFailed(error.what());
      }
      takeCompletions(&done);
    }
    flush(&done);
    return status;
  }

  // Calls attempt(state), which moves a message inside the call and returns an operation that is done, or null. Null
  // without a call while operations are in flight; the group's failure when the group has failed.
  template <typename Attempt>
  Result<WorkPtr> tryNow(Attempt&& attempt) {
    Completions done;
    std::shared_ptr<Activity> over;
    Status status;
    {
      const MutexLock lock(mutex_);
      if (!state_.operations.failure().isOk()) {
        return state_.operations.refusal();
      }
      if (!state_.operations.inFlight().empty()) {
        return WorkPtr();
      }
      try {
        over = attempt(state_);
        leaveRest();
      } catch (const std::exception& error) {
        status = startFailed(error.what());
      }
      takeCompletions(&done);
    }
    flush(&done);
    return status.isOk() ? Result<WorkPtr>(std::move(over)) : Result<WorkPtr>(status);
  }
  // How often a call polls for frames that are mostly under way already.
  int mostPolls(bool spins) const {
    return spins && yieldAfter_ != Duration::zero() && spin_ != Duration::zero() ? kPollsInCall : 1;
  }
  // Polls until isOver(), a few times at most; once if each core has several ranks, or unless `spins`.
  template <typename IsOver>
  void pollBriefly(GroupState& state, bool spins, IsOver&& isOver) const {
    const int most = mostPolls(spins);
    for (int i = 0; i < most && !isOver(); ++i) {
      if (!state.poll()) {
        relax();
      }
    }
  }

  // The time that a caller waits in vain before the caller yields, and before the caller sleeps.
  Patience newPatience() const { return {spin_, yieldAfter_}; }
  // Polls until `activity` is done (true) or `until` passes (false).
  bool drive(Activity& activity, Deadline until, Patience& patience) SW_EXCLUDES(mutex_);
  // Polls once, unless another thread does.
  void help();
  // Runs the callbacks that another thread's callback keeps waiting. Before removeFrom(), after which nobody else
  // would.
  void finishCallbacks() { callbacks_.run(); }

  // Before addTo(): the progress thread runs. kSystem when the system gives no thread.
  Status startThread() { return progress_->start(); }
  void addTo(const std::shared_ptr<Progressed>& group) { progress_->add(group); }
  void removeFrom(const Progressed* group) { progress_->remove(group); }
  Progressed::Look lookAsLeader();
  // The progress thread looks at this group at once, idle or not.
  void wakeProgress();

 private:
  // Completed operations on their way out of the lock; flush() empties the list.
  struct Completions {
    std::vector<Activity::Completion> list;
    std::vector<Activity::Completion>* spare = nullptr;  // the thread's, where the emptied list goes
    bool hasFailure = false;                             // the failure callback is due
  };
  // Frames that are under way already come within this many polls, about two microseconds.
  static constexpr int kPollsInCall = 32;
  // The role of the calling thread while the thread flushes.
  enum class Duty : unsigned char { kNone, kCaller, kProgressThread };

  // After an exception while operations were started, mostly for want of memory: a number is taken that the peers wait
  // for, or a message has left. Fails the group with all operations in flight, lets the progress thread drive again,
  // and returns the failure.
  Status startFailed(const char* why) SW_REQUIRES(mutex_);
  // Returns whether anything moved. An exception fails the group.
  bool poll(bool checksSlow) SW_REQUIRES(mutex_);
  void pollFailed(const char* why) SW_REQUIRES(mutex_);
  void spinFor(const Activity& last, Duration spinInline) SW_REQUIRES(mutex_);
  void leaveRest() SW_REQUIRES(mutex_);
  bool pollOrNot(bool looksSlow, Completions* done) SW_EXCLUDES(mutex_);
  void sleepOnBell(const Activity& activity, Deadline until, Patience& patience) SW_EXCLUDES(mutex_);
  void takeCompletions(Completions* done) SW_REQUIRES(mutex_) {
    if (!state_.operations.completions().empty() || state_.failure.isCallbackDue()) {
      takeThem(done);
    }
  }
  void takeThem(Completions* done) SW_REQUIRES(mutex_);
  // Runs and destroys the completions. False when the progress thread lost the lead meanwhile.
  bool flush(Completions* done, Duty duty = Duty::kNone) SW_EXCLUDES(mutex_) {
    return (done->list.empty() && !done->hasFailure && !callbacks_.isStuck()) || flushThem(done, duty);
  }
  bool flushThem(Completions* done, Duty duty) SW_EXCLUDES(mutex_);
  // Around callbacks: another thread drives meanwhile. stepBack: false when another thread leads by now.
  void stepAside(Duty duty, std::uint64_t* turn);
  bool stepBack(Duty duty, std::uint64_t turn);

  Peers& peers_;
  FailureCallback& failureCallback_;
  Duration spin_{0};
  Duration yieldAfter_{0};

  // While a thread is in drive() or start(), the progress thread leaves the work to this thread.
  std::atomic<int> drivers_{0};
  std::atomic<bool> isStarting_{false};  // stored under the lock
  std::atomic<int> sleepers_{0};         // threads in drive() that may be asleep: completions wake only these threads
  // For the progress thread: whether the thread must look at this group before nextIdleLook_. Set together with new
  // work, cleared by the progress thread.
  std::atomic<bool> hasWork_{false};
  std::atomic<Clock::time_point> nextIdleLook_{};
  CallbackQueue callbacks_;
  const std::shared_ptr<ProgressThread> progress_;  // of this process

  mutable Mutex mutex_;
  GroupState state_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
