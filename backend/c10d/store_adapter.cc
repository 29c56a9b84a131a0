#include "backend/c10d/store_adapter.h"

#include <fmt/format.h>

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;

// A day stands for "no deadline": the stores take 0 for for-ever in some versions and for at-once in others.
milliseconds timeLeft(Deadline deadline) {
  constexpr milliseconds kLongest = std::chrono::hours(24);
  if (deadline == kNoDeadline) {
    return kLongest;
  }
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
  return std::clamp(left, milliseconds(1), kLongest);
}

}  // namespace

Status C10dStore::set(const std::string& key, std::string_view value) {
  try {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return Status::ok();
  } catch (const std::exception& error) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store refused to set key '{}': {}", key, error.what()));
  }
}

Result<std::string> C10dStore::get(const std::string& key, Deadline deadline) {
  try {
    store_->wait({key}, timeLeft(deadline));
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    // Each store throws a type of its own when the wait ends; the clock tells the two causes apart.
    const bool late = deadline != kNoDeadline && Clock::now() + milliseconds(20) >= deadline;
    return late ? Status(StatusCode::kTimeout, fmt::format("key '{}' did not appear in the c10d store in time", key))
                : Status(StatusCode::kSystem, fmt::format("the c10d store failed while waiting for key '{}': {}", key, error.what()));
  }
}

}  // namespace shardwire::internal
