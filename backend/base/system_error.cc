#include "backend/base/system_error.h"

#include <fmt/format.h>
#include <string.h>
#include <sys/resource.h>

namespace shardwire::internal {

std::string errnoText(int error) {
  const char* description = ::strerrordesc_np(error);  // unlike strerror: thread-safe, and the same in every locale
  const char* name = ::strerrorname_np(error);
  if (description == nullptr || name == nullptr) {
    return fmt::format("unknown error {}", error);
  }
  return fmt::format("{} ({})", description, name);
}

Status systemError(std::string_view what, int error) {
  return {StatusCode::kSystem, fmt::format("{}: {}", what, errnoText(error))};
}

Status threadError(std::string_view what, const std::system_error& error) {
  rlimit limit{};
  const bool isLimited = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return {StatusCode::kSystem,
          fmt::format("{}: {}. The system gives no more threads: raise ulimit -u ({} now) or the container's limit of "
                      "processes (pids.max), or start fewer threads",
                      what, errnoText(error.code().value()),
                      isLimited ? std::to_string(limit.rlim_cur) : std::string("unlimited"))};
}

}  // namespace shardwire::internal
