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

  void post(std::function<void()> callback);

 private:
  struct State {
    Mutex mutex;
    ConditionVariable changed;
    std::deque<std::function<void()>> posted SW_GUARDED_BY(mutex);
    int idle SW_GUARDED_BY(mutex) = 0;
    bool stopping SW_GUARDED_BY(mutex) = false;
  };
  // Waits for a callback; empty when the thread must end.
  static std::function<void()> next(State& state);
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the threads, which nobody joins: a callback may drop the group
};

}  // namespace shardwire::internal
