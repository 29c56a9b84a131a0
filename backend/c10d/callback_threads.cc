#include "backend/c10d/callback_threads.h"

#include <thread>

namespace shardwire::internal {

CallbackThreads::~CallbackThreads() {
  const MutexLock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notifyAll();
}

void CallbackThreads::post(std::function<void()> callback) {
  bool start = false;
  {
    const MutexLock lock(state_->mutex);
    state_->posted.push_back(std::move(callback));
    start = state_->idle < static_cast<int>(state_->posted.size());
  }
  if (start) {
    std::thread([state = state_] { run(state); }).detach();
  } else {
    state_->changed.notifyOne();
  }
}

std::function<void()> CallbackThreads::next(State& state) {
  const MutexLock lock(state.mutex);
  ++state.idle;
  while (!state.stopping && state.posted.empty()) {
    state.changed.wait(state.mutex);
  }
  --state.idle;
  if (state.posted.empty()) {
    return nullptr;
  }
  std::function<void()> callback = std::move(state.posted.front());
  state.posted.pop_front();
  return callback;
}

void CallbackThreads::run(const std::shared_ptr<State>& state) {
  while (const std::function<void()> callback = next(*state)) {
    callback();
  }
}

}  // namespace shardwire::internal
