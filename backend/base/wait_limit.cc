#include "backend/base/wait_limit.h"

#include <errno.h>
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>

#include "backend/base/interruptible_wait.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);

// For ppoll(2). poll(2) counts in milliseconds, but ranks often arrive within less than a millisecond.
timespec timeUntil(Deadline deadline) {
  const auto left = std::max(std::chrono::nanoseconds(0), std::chrono::nanoseconds(deadline - Clock::now()));
  const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
  return {.tv_sec = static_cast<time_t>(seconds.count()), .tv_nsec = static_cast<long>((left - seconds).count())};
}

}  // namespace

Result<int> WaitLimit::poll(std::span<pollfd> entries) const {
  InterruptibleWait slices(deadline_);
  while (true) {
    SW_RETURN_IF_ERROR(look());
    const Deadline until =
        look_ == nullptr ? slices.sliceEnd() : std::min(slices.sliceEnd(), Clock::now() + kLookEvery);
    const timespec left = until == kNoDeadline ? timespec{} : timeUntil(until);
    const int ready = ::ppoll(entries.data(), entries.size(), until == kNoDeadline ? nullptr : &left, nullptr);
    if (ready > 0) {
      return ready;
    }
    if (ready < 0 && errno != EINTR) {
      return systemError("waiting for peers", errno);
    }
    if (isOver()) {
      return 0;
    }
    if (slices.isInterrupted()) {
      return interruptedStatus("waiting for peers");
    }
  }
}

Status WaitLimit::waitFor(const Fd& fd, short events, std::string_view what) const {
  pollfd entry{fd.get(), events, 0};
  const auto ready = poll({&entry, 1});
  SW_RETURN_IF_ERROR(ready.status());
  return *ready > 0 ? Status::ok() : Status{StatusCode::kTimeout, fmt::format("{}: no answer in time", what)};
}

}  // namespace shardwire::internal
