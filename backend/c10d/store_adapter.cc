#include "backend/c10d/store_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;

// The stores' own waits are off by up to two seconds (FileStore counts whole ones) and write warnings when they end (TCPStore). So a key is
// asked for at short intervals when its wait begins and when the deadline is near, and only the long stretch between is left to the store.
constexpr milliseconds kShortestPause(1);
constexpr milliseconds kLongestPause(20);
constexpr milliseconds kAskFirst = std::chrono::seconds(1);
constexpr milliseconds kAskLast = std::chrono::seconds(3);
// The stores take 0 for for-ever in some versions and for at-once in others.
constexpr milliseconds kLongestWait = std::chrono::hours(1);

milliseconds timeLeft(Deadline deadline) {
  return deadline == kNoDeadline ? kLongestWait + kAskLast : std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
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
    const auto start = Clock::now();
    milliseconds pause = kShortestPause;
    while (!store_->check({key})) {
      const milliseconds left = timeLeft(deadline);
      if (left.count() <= 0) {
        return Status(StatusCode::kTimeout, fmt::format("key '{}' did not appear in the c10d store in time", key));
      }
      if (Clock::now() - start > kAskFirst && left > kAskLast) {
        waitQuietly(key, std::min(left - kAskLast, kLongestWait));
      }
      std::this_thread::sleep_for(std::min(pause, left));
      pause = std::min(2 * pause, kLongestPause);
    }
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store failed while waiting for key '{}': {}", key, error.what()));
  }
}

void C10dStore::waitQuietly(const std::string& key, milliseconds timeout) {
  try {
    store_->wait({key}, timeout);
  } catch (const std::exception&) {
    // Each store throws a type of its own when the time is up. Were the store broken, the next question would say so.
  }
}

}  // namespace shardwire::internal
