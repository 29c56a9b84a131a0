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

Status CallbackThreads::post(std::function<void()> callback, std::function<void()> reply) {
  bool needsThread = false;
  {
    const MutexLock lock(state_->mutex);
    state_->posted.push_back({std::move(callback), std::move(reply)});
    needsThread = state_->idle < static_cast<int>(state_->posted.size());
  }
  if (needsThread) {
    return start(state_);
  }
  state_->changed.notifyOne();
  return Status::ok();
}

Status CallbackThreads::start(const std::shared_ptr<State>& state) {
  try {
    std::thread([state] { run(state); }).detach();
    return Status::ok();
  } catch (const std::system_error& error) {
    logWarn("no thread starts for a callback, which waits for another thread or for the next callback: {}",
            error.what());
    return {StatusCode::kSystem, error.what()};
  }
}

CallbackThreads::Task CallbackThreads::next(const std::shared_ptr<State>& state, const std::function<void()>& reply) {
  {
    const MutexLock lock(state->mutex);
    ++state->idle;
  }
  if (reply) {
    reply();
  }
  Task task;
  bool needsThread = false;
  {
    const MutexLock lock(state->mutex);
    while (!state->stopping && state->posted.empty()) {
      state->changed.wait(state->mutex);
    }
    --state->idle;
    if (state->posted.empty()) {
      return {};
    }
    task = std::move(state->posted.front());
    state->posted.pop_front();
    needsThread = state->idle < static_cast<int>(state->posted.size());
  }
  if (needsThread) {
    static_cast<void>(start(state));  // for a callback whose thread could not start
  }
  return task;
}

void CallbackThreads::run(const std::shared_ptr<State>& state) {
  Task task;
  while ((task = next(state, task.reply)).callback) {
    task.callback();
    task.callback = nullptr;  // releases the captured objects before the reply
  }
}

}  // namespace shardwire::internal
