// The work that must be over before an operation may touch tensors: earlier operations of this rank over the same
// memory, or the ranks' agreement on the arguments. Shared by the operation's stages; everything under the engine's
// lock, except for the constructor.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class StartGate {
 public:
  // `prepare` (may be empty) is called once, when all of `earlier` are done, and reads tensors before the first stage.
  // `failure`: not ok if the operation must fail the group instead of starting.
  StartGate(std::vector<std::shared_ptr<Activity>> earlier, std::function<void()> prepare,
            Status failure = Status::ok())
      : earlier_(std::move(earlier)), prepare_(std::move(prepare)), failure_(std::move(failure)) {}

  bool isOpen() {
    while (!earlier_.empty() && earlier_.back()->isDone()) {
      earlier_.pop_back();
    }
    if (earlier_.empty() && prepare_ != nullptr) {
      std::exchange(prepare_, nullptr)();
    }
    return earlier_.empty();
  }

  const Status& failure() const { return failure_; }

  // An operation that is not over; null if the gate is about to open.
  const Activity* firstOpen() const {
    const auto open =
        std::find_if(earlier_.begin(), earlier_.end(), [](const auto& activity) { return !activity->isDone(); });
    return open == earlier_.end() ? nullptr : open->get();
  }
  // For messages, while the gate is closed. Names the end of the chain, which may have thousands of operations.
  std::string waitingFor() const {
    const Activity* open = firstOpen();
    if (open == nullptr) {
      return "an earlier operation";
    }
    while (const Activity* before = open->heldBackBy()) {
      open = before;
    }
    return open->description.text() + " must be over first: " + open->waitingFor();
  }

 private:
  std::vector<std::shared_ptr<Activity>> earlier_;
  std::function<void()> prepare_;
  Status failure_;
};

}  // namespace shardwire::internal
