#include "backend/c10d/store_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "backend/base/interrupt.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;

// The stores' own waits are off by up to two seconds (FileStore counts whole ones), write warnings when they end (TCPStore), keep the store
// from every other use, and do not hear Ctrl-C. So keys are asked for, the less often the longer the group has been waited for: what comes
// is late by a tenth of that at most, and a thousand ranks that wait for one ask a store 5,000 times a second.
constexpr Duration kShortestPause = milliseconds(1);
constexpr Duration kLongestPause = milliseconds(200);
constexpr int kAsksPerWait = 10;

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
    InterruptibleWait slices(deadline);
    while (!store_->check({key})) {
      const Deadline now = Clock::now();
      if (now >= deadline) {
        return Status(StatusCode::kTimeout, fmt::format("key '{}' did not appear in the c10d store in time", key));
      }
      const Deadline next = std::min(deadline, now + std::clamp<Duration>((now - made_) / kAsksPerWait, kShortestPause, kLongestPause));
      while (Clock::now() < next) {
        std::this_thread::sleep_until(std::min(next, slices.sliceEnd()));
        if (slices.isInterrupted()) {
          return interruptedStatus(fmt::format("waiting for key '{}' of the c10d store", key));
        }
      }
    }
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  } catch (const std::exception& error) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store failed while waiting for key '{}': {}", key, error.what()));
  }
}

}  // namespace shardwire::internal
