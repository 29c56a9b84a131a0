// The life of an activity: enter() gives it its group, complete() or endInCall() its status, and then the callbacks run
// once, outside of the group's lock, on the thread that noticed the end. A callback that is added later runs at once.
// The list of callbacks is a stack of atomics, whose last value says that the list is closed.
#include "backend/exec/activity.h"

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/base/user_call.h"

namespace shardwire::internal {

namespace {

thread_local int numCallbacksOfThread = 0;  // on the stack of this thread

}  // namespace

Activity::Callback* const Activity::kCalled = reinterpret_cast<Activity::Callback*>(std::uintptr_t{1});

Activity::~Activity() {
  closeCallbacks();
  while (closed_ != nullptr) {
    delete std::exchange(closed_, closed_->next);
  }
}

void Activity::enter(RunContext& context, const std::weak_ptr<Driver>& driver) {
  context_ = &context;
  driver_ = driver;
}

Status Activity::wait(Deadline until) {
  if (isDone()) {
    return status_;
  }
  // An engine ends only after completing all taken activities.
  const std::shared_ptr<Driver> driver = driver_.lock();
  return driver == nullptr ? status() : driver->waitFor(*this, until);
}

void Activity::add(Callback* added) {
  Callback* newest = callbacks_.load(std::memory_order_acquire);
  while (newest != kCalled) {
    added->next = newest;
    if (callbacks_.compare_exchange_weak(newest, added, std::memory_order_acq_rel)) {
      return;
    }
  }
  const std::unique_ptr<Callback> mine(added);
  invoke(*mine);
}

Status Activity::misfit(Rank from, FrameKind kind) const {
  return {StatusCode::kInternal, fmt::format("rank {} sent a frame (kind {}: {}) that does not fit {}", from,
                                             static_cast<int>(kind), frameKindName(kind), description.text())};
}

void Activity::markDone(Status& status) {
  if (timed) {
    ended = Clock::now();
  }
  if (epilogue != nullptr) {
    if (status.isOk()) {
      epilogue();
    }
    epilogue = nullptr;
  }
  if (!status.isOk()) {  // reuse() has set the other case
    status_ = std::move(status);
  }
  done_.store(true, std::memory_order_release);
}

Activity::Completion Activity::complete(std::shared_ptr<Activity> activity, Status status) {
  Activity& over = *activity;
  Completion completion{std::move(activity), std::exchange(over.keepAlive, nullptr)};
  over.markDone(status);
  return completion;
}

bool Activity::endInCall(Status& status) {
  if (!mayEndInCall()) {
    return false;
  }
  callbacks_.store(kCalled, std::memory_order_relaxed);
  markDone(status);
  return true;
}

bool Activity::closeCallbacks() {
  if (callbacks_.load(std::memory_order_relaxed) == kCalled) {  // an exchange costs more
    return false;
  }
  Callback* newest = callbacks_.exchange(kCalled, std::memory_order_acq_rel);
  bool mayWait = false;
  while (newest != nullptr) {
    mayWait |= newest->mayWait;
    Callback* next = std::exchange(newest->next, closed_);
    closed_ = std::exchange(newest, next);
  }
  return mayWait;
}

void Activity::runCallbacks() {
  closeCallbacks();
  while (closed_ != nullptr) {
    const std::unique_ptr<Callback> callback(std::exchange(closed_, closed_->next));
    invoke(*callback);
  }
}

void Activity::invoke(const Callback& callback) {
  ++numCallbacksOfThread;
  callUser("a callback of an operation", [&] { callback.call(status_); });
  --numCallbacksOfThread;
}

bool Activity::isInCallback() {
  return numCallbacksOfThread > 0;
}

void Activity::reuse() {
  done_.store(false, std::memory_order_relaxed);
  callbacks_.store(nullptr, std::memory_order_relaxed);
  if (!status_.isOk()) {
    status_ = Status::ok();
  }
}

}  // namespace shardwire::internal
