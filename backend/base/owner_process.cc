#include "backend/base/owner_process.h"

#include <fmt/format.h>
#include <pthread.h>
#include <unistd.h>

#include "backend/base/system_error.h"

namespace shardwire::internal {

std::atomic<std::uint32_t> OwnerProcess::current_{0};

OwnerProcess::OwnerProcess() : pid_(::getpid()) {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { current_.fetch_add(1, std::memory_order_relaxed); });
  SW_CHECK(registered == 0);  // ENOMEM
  generation_ = current_.load(std::memory_order_relaxed);
}

Status OwnerProcess::check(std::string_view what) const {
  if (isHere()) {
    return Status::ok();
  }
  return {StatusCode::kUnsupported, fmt::format("{} belongs to process {}; this is process {}, forked from it, which "
                                                "cannot use it: make a group in this process, or "
                                                "use the group in process {} only",
                                                what, pid_, ::getpid(), pid_)};
}

}  // namespace shardwire::internal
