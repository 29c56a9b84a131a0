// Runs callbacks of works on threads of its own, as many as are at work at once: a callback may wait for another operation, whose callbacks
// must run meanwhile. Threads start when they are first needed. Any thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

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
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> posted;  // guarded by mutex, like the rest
    int idle = 0;
    bool stopping = false;
  };
  static void run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;  // shared with the threads, which nobody joins: a callback may drop the group
};

}  // namespace shardwire::internal
