// Mutex and lock for clang's thread-safety analysis: fields are SW_GUARDED_BY(mutex_), private functions
// SW_REQUIRES(mutex_).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "backend/base/futex.h"
#include "shardwire/types.h"

#if defined(__clang__)
#define SW_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define SW_THREAD_ANNOTATION(x)
#endif
#define SW_CAPABILITY(name) SW_THREAD_ANNOTATION(capability(name))
#define SW_SCOPED_CAPABILITY SW_THREAD_ANNOTATION(scoped_lockable)
#define SW_GUARDED_BY(mutex) SW_THREAD_ANNOTATION(guarded_by(mutex))
#define SW_REQUIRES(...) SW_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define SW_EXCLUDES(...) SW_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define SW_ACQUIRE(...) SW_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SW_TRY_ACQUIRE(...) SW_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define SW_RELEASE(...) SW_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define SW_NO_THREAD_SAFETY_ANALYSIS SW_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace shardwire::internal {

// One word (the second mutex of Drepper, "Futexes are tricky"). Without another thread, a lock and an unlock are 10
// instructions in place; std::mutex takes 110 in the C library, which would be a tenth of a short operation.
class SW_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() SW_ACQUIRE() {
    if (!tryLock()) {
      lockSlowly();
    }
  }
  void unlock() SW_RELEASE() {
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) {
      futexWakeOneInProcess(state_);
    }
  }
  bool tryLock() SW_TRY_ACQUIRE(true) {
    std::uint32_t expected = kFree;
    return state_.compare_exchange_strong(expected, kTaken, std::memory_order_acquire);
  }

 private:
  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kTaken = 1;
  static constexpr std::uint32_t kAwaited = 2;  // taken, and a thread may be asleep

  // A thread that slept cannot know whether others still sleep: the thread takes the mutex as awaited.
  void lockSlowly() {
    while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree) {
      futexWaitInProcess(state_, kAwaited);
    }
  }

  std::atomic<std::uint32_t> state_{kFree};
};

class SW_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SW_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller already holds the mutex, by tryLock().
  MutexLock(Mutex& mutex, std::adopt_lock_t) SW_REQUIRES(mutex) : mutex_(mutex) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() SW_RELEASE() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

// Waits may end spuriously: look at the condition again.
class ConditionVariable {
 public:
  void wait(Mutex& mutex) SW_REQUIRES(mutex) { condition_.wait(mutex); }
  void waitUntil(Mutex& mutex, Deadline deadline) SW_REQUIRES(mutex) {
    if (deadline == kNoDeadline) {
      return wait(mutex);
    }
    condition_.wait_until(mutex, deadline);
  }
  void notifyOne() { condition_.notify_one(); }
  void notifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace shardwire::internal
