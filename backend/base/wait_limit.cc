#include "backend/base/wait_limit.h"

#include <errno.h>
#include <fmt/format.h>

#include "backend/base/interrupt.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);

}  // namespace

int pollTimeout(Deadline deadline) {
  if (deadline == kNoDeadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

Result<int> WaitLimit::poll(std::span<pollfd> entries) const {
  InterruptibleWait slices(deadline_);
  while (true) {
    SW_RETURN_IF_ERROR(look());
    const Deadline until = look_ == nullptr ? slices.sliceEnd() : std::min(slices.sliceEnd(), Clock::now() + kLookEvery);
    const int ready = ::poll(entries.data(), entries.size(), pollTimeout(until));
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
