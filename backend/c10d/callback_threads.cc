#include "backend/c10d/callback_threads.h"

#include <system_error>
#include <thread>

#include "backend/base/log.h"

namespace shardwire::internal {

CallbackThreads::~CallbackThreads() {
  const MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notifyAll();
}

void CallbackThreads::post(std::function<void()> callback, std::function<void()> reply) {
  bool start = false;
  {
    const MutexLock lock(state_->mutex);
    state_->posted.push_back({std::move(callback), std::move(reply)});
    start = state_->idle < static_cast<int>(state_->posted.size());
  }
  if (start) {
    try {
      std::thread([state = state_] { run(state); }).detach();
    } catch (const std::system_error& error) {
      logWarn("no thread starts for a callback, which waits for another thread or for the next callback: {}",
              error.what());
    }
  } else {
    state_->changed.notifyOne();
  }
}

CallbackThreads::Task CallbackThreads::next(State& state, const std::function<void()>& reply) {
  {
    const MutexLock lock(state.mutex);
    ++state.idle;
  }
  if (reply) {
    reply();
  }
  const MutexLock lock(state.mutex);
  while (!state.stopping && state.posted.empty()) {
    state.changed.wait(state.mutex);
  }
  --state.idle;
  if (state.posted.empty()) {
    return {};
  }
  Task task = std::move(state.posted.front());
  state.posted.pop_front();
  return task;
}

void CallbackThreads::run(const std::shared_ptr<State>& state) {
  Task task;
  while ((task = next(*state, task.reply)).callback) {
    task.callback();
    task.callback = nullptr;  // releases the captured objects before the reply
  }
}

}  // namespace shardwire::internal
