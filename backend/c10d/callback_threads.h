// Runs callbacks of works on its own threads, one for each callback that runs at the same time: a callback may wait for
// another operation, whose callbacks must run meanwhile. Also runs requests to stores, which may never return. A thread
// starts when no thread is free. Any thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "backend/base/mutex.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class CallbackThreads {
 public:
  CallbackThreads() : state_(std::make_shared<State>()) {}
  // Posted callbacks still run after the destructor, by the remaining threads, which then end.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // `reply` runs after `callback`, when the thread counts as free already. So a caller posting again because of the
  // reply starts no further thread. Not ok: no thread could start; the callback waits for a thread that is free, or for
  // the next post.
  Status post(std::function<void()> callback, std::function<void()> reply = nullptr);

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
  // Runs the reply of the previous task, then waits for the next task; empty when the thread must end.
  static Task next(const std::shared_ptr<State>& state, const std::function<void()>& reply);
  static Status start(const std::shared_ptr<State>& state);
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State>
      state_;  // shared with the threads, which are never joined: a callback may drop the group
};

}  // namespace shardwire::internal
