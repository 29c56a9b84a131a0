// Runs callbacks of works on threads of its own, as many as are at work at once: a callback may wait for another operation, whose callbacks
// must run meanwhile. Also questions to stores, which may never come back. Threads start when they are first needed. Any thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "backend/base/mutex.h"

namespace shardwire::internal {

class CallbackThreads {
 public:
  CallbackThreads() : state_(std::make_shared<State>()) {}
  // What was posted is still run, by threads that end by themselves.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // `reply` follows `callback` when its thread counts as free already, so that who posts again because of the reply starts no further one.
  void post(std::function<void()> callback, std::function<void()> reply = nullptr);

 private:
  struct Task {
    std::function<void()> callback;
    std::function<void()> reply;
  };
  struct State {
    Mutex mutex;
    ConditionVariable changed;
    std::deque<Task> posted SW_GUARDED_BY(mutex);
    int idle SW_GUARDED_BY(mutex) = 0;
    bool stopping SW_GUARDED_BY(mutex) = false;
  };
  // Gives the reply of the task before, and waits for the next one; empty when the thread must end.
  static Task next(State& state, const std::function<void()>& reply);
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the threads, which nobody joins: a callback may drop the group
};

}  // namespace shardwire::internal
