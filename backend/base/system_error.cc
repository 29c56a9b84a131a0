#include "backend/base/system_error.h"

#include <fmt/format.h>
#include <string.h>

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

}  // namespace shardwire::internal
