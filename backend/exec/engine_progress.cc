// Who moves things along: callers who wait, the progress thread, and the hand-over between them around callbacks.
#include <algorithm>
#include <thread>

#include "backend/base/relax.h"
#include "backend/exec/engine.h"

namespace shardwire::internal {

namespace {

// Longest sleep of the progress thread of a group with nothing in flight.
constexpr Duration kIdleSleep = std::chrono::milliseconds(100);

}  // namespace

bool Engine::unlockAndFlush(std::unique_lock<std::mutex>& lock, Driving driving) {
  if (completions_.empty()) {
    lock.unlock();
    return true;
  }
  // A buffer per thread, so that completing allocates nothing; taken away while in use, since callbacks may come back here.
  thread_local std::vector<Activity::Completion> buffer;
  std::vector<Activity::Completion> done = std::move(buffer);
  buffer = {};
  done.swap(completions_);
  lock.unlock();
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    peers_.doorbell->ringSelf();
  }
  // A callback may wait for another operation in a way that drives nothing: whoever drives hands that over first.
  const bool handOver = driving != Driving::kNo &&
                        std::any_of(done.begin(), done.end(), [](const auto& completion) { return completion.activity->hasCallbacks(); });
  std::uint64_t turn = 0;
  if (handOver) {
    stepAside(driving, &turn);
  }
  for (auto& completion : done) {
    completion.activity->runCallbacks(completion.status);
  }
  done.clear();
  buffer = std::move(done);
  return !handOver || stepBack(driving, turn);
}

bool Engine::drive(Activity& activity, Deadline until) {
  drivers_.fetch_add(1, std::memory_order_seq_cst);
  peers_.doorbell->disarm();
  auto spinUntil = Clock::now() + spin_;
  int idle = 0;
  while (!activity.isDone()) {
    bool progress = false;
    if (std::unique_lock lock(mutex_, std::try_to_lock); lock.owns_lock()) {
      progress = pollLocked();
      if (!progress && (idle & 63) == 63) {
        checkSlow(true);
      }
      unlockAndFlush(lock, Driving::kCaller);
    }
    if (progress) {
      idle = 0;
      continue;
    }
    relax();
    if ((++idle & 15) != 0) {
      if (yieldAfter_ == Duration(0)) {
        std::this_thread::yield();
      }
      continue;
    }
    const auto now = Clock::now();
    if (now >= until) {
      break;
    }
    if (idle == 16) {
      spinUntil = now + spin_;
    }
    if (now < spinUntil) {
      if (spinUntil - now < spin_ - yieldAfter_) {
        std::this_thread::yield();  // the peer that we wait for may be waiting for this very core
      }
      continue;
    }
    // Spun enough: arm, look once more, sleep.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock lock(mutex_);
    const std::uint32_t ticket = peers_.doorbell->arm();
    progress = pollLocked();
    checkSlow(!progress);
    const Deadline soonest = std::min({until, activity.deadline, now + kMaxSleep});
    const bool sleep = !progress && completions_.empty() && !activity.isDone() && !poison_.has_value();
    unlockAndFlush(lock, Driving::kCaller);
    if (sleep) {
      peers_.doorbell->sleep(ticket, soonest);
    }
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    idle = sleep ? 31 : 0;  // after a sleep that brought nothing: sleep again, without spinning first
  }
  std::unique_lock lock(mutex_);
  stopDriving();
  unlockAndFlush(lock);
  return activity.isDone();
}

void Engine::stepAside(Driving driving, std::uint64_t* turn) {
  if (driving == Driving::kCaller) {
    drivers_.fetch_sub(1, std::memory_order_seq_cst);
    peers_.doorbell->ringSelf();
    return;
  }
  if (role_.enterCallbacks(turn)) {
    startFollower();
  }
}

bool Engine::stepBack(Driving driving, std::uint64_t turn) {
  if (driving == Driving::kCaller) {
    drivers_.fetch_add(1, std::memory_order_seq_cst);
    return true;
  }
  return role_.leaveCallbacks(turn);
}

void Engine::startFollower() {
  std::lock_guard lock(followersMutex_);
  if (!stop_.load(std::memory_order_acquire)) {
    followers_.emplace_back([self = shared_from_this()] {
      while (self->role_.follow()) {
        self->lead();
      }
    });
  }
}

void Engine::progressThread() {
  // The mark belongs to this thread, which stays to the end, whoever leads.
  peers_.doorbell->holdLiveness();
  do {
    lead();
  } while (role_.follow());
  peers_.doorbell->leave();
}

// Until the end, or until another thread took the lead.
void Engine::lead() {
  while (!stop_.load(std::memory_order_acquire)) {
    bool progress = false;
    bool idle = true;
    std::uint32_t ticket = peers_.doorbell->ticket();
    if (drivers_.load(std::memory_order_seq_cst) == 0) {
      std::unique_lock lock(mutex_);
      idle = active_.empty() && failNotice_.empty();
      if (!idle) {
        ticket = peers_.doorbell->arm();
        progress = pollLocked();
        checkSlow(!progress);
        idle = active_.empty();
      }
      if (!unlockAndFlush(lock, Driving::kProgressThread)) {
        return;
      }
    }
    if (!progress && !stop_.load(std::memory_order_acquire)) {
      peers_.doorbell->sleep(ticket, Clock::now() + (idle ? kIdleSleep : kMaxSleep));
    }
  }
}

void Engine::shutdown() {
  std::lock_guard guard(shutdownMutex_);
  if (stopped_) {
    return;
  }
  stopped_ = true;
  {
    std::unique_lock lock(mutex_);
    poison({StatusCode::kAborted, "the group was shut down on " + groupLabel()}, false);
    pollLocked();
    unlockAndFlush(lock);
  }
  stop_.store(true, std::memory_order_release);
  peers_.doorbell->ringSelf();
  role_.stop();
  // A callback may have dropped the group: its thread ends by itself and holds the engine until then.
  const auto end = [](std::thread& thread) {
    if (std::this_thread::get_id() == thread.get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  };
  end(thread_);
  std::vector<std::thread> followers;
  {
    std::lock_guard lock(followersMutex_);
    followers.swap(followers_);
  }
  std::for_each(followers.begin(), followers.end(), end);
}

}  // namespace shardwire::internal
