// The limit of a wait, and other reasons to end the wait: while a group is made, a rank that waits for one peer also
// checks whether other ranks gave up or died. Ctrl-C ends any wait (backend/base/interruptible_wait.h). A plain
// deadline is a limit too. A value; used by one thread at a time.
#pragma once

#include <poll.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>

#include "backend/base/fd.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class WaitLimit {
 public:
  // Called on the waiting thread at the start of a wait and then every 100 ms. An error ends the wait and is returned.
  using Look = std::function<Status()>;

  WaitLimit(Deadline deadline) : deadline_(deadline) {}  // NOLINT: implicit, since a deadline is a limit
  // `look` must outlive this object and all copies.
  WaitLimit(Deadline deadline, const Look* look) : deadline_(deadline), look_(look) {}

  Deadline deadline() const { return deadline_; }
  bool isOver() const { return Clock::now() >= deadline_; }
  WaitLimit sooner(Deadline deadline) const { return {std::min(deadline, deadline_), look_}; }
  // Calls `look` at once, for loops that do not wait by poll().
  Status look() const { return look_ == nullptr ? Status::ok() : (*look_)(); }

  // poll(2): how many entries are ready, or broken; 0 at the deadline.
  Result<int> poll(std::span<pollfd> entries) const;
  // Ok when the descriptor is ready for `events`, or broken; the next call on the descriptor returns the error.
  // kTimeout at the deadline, naming `what`.
  Status waitFor(const Fd& fd, short events, std::string_view what) const;

 private:
  Deadline deadline_;
  const Look* look_ = nullptr;
};

}  // namespace shardwire::internal
