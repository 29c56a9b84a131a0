#include "backend/c10d/callback_threads.h"

#include <thread>

namespace shardwire::internal {

CallbackThreads::~CallbackThreads() {
  const std::lock_guard lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
}

void CallbackThreads::post(std::function<void()> callback) {
  bool start = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->posted.push_back(std::move(callback));
    start = state_->idle < static_cast<int>(state_->posted.size());
  }
  if (start) {
    std::thread([state = state_] { run(state); }).detach();
  } else {
    state_->changed.notify_one();
  }
}

void CallbackThreads::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    ++state->idle;
    state->changed.wait(lock, [&] { return state->stopping || !state->posted.empty(); });
    --state->idle;
    if (state->posted.empty()) {
      return;
    }
    {
      const std::function<void()> callback = std::move(state->posted.front());
      state->posted.pop_front();
      lock.unlock();
      callback();
    }
    lock.lock();
  }
}

}  // namespace shardwire::internal
