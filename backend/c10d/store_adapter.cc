#include "backend/c10d/store_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

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

// What no rank ever writes.
constexpr std::string_view kNothing = "shardwire: is this key there?";

std::vector<std::uint8_t> storeBytes(std::string_view text) {
  return {text.begin(), text.end()};
}

bool isTcpStore(c10::intrusive_ptr<::c10d::Store> store) {
  while (auto* prefixed = dynamic_cast<::c10d::PrefixStore*>(store.get())) {
    store = prefixed->getUnderlyingStore();
  }
  return dynamic_cast<::c10d::TCPStore*>(store.get()) != nullptr;
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<::c10d::Store> store) : store_(std::move(store)), isTcp_(isTcpStore(store_)) {}

// One question to a TCPStore, where check() and get() are three: its compareSet() answers with what is there, and where nothing is, with
// what was expected. It changes nothing, since what was expected and what was to be set are the same.
std::optional<std::string> C10dStore::look(const std::string& key) {
  std::vector<std::uint8_t> value;
  if (isTcp_) {
    const std::vector<std::uint8_t> nothing = storeBytes(kNothing);
    value = store_->compareSet(key, nothing, nothing);
    if (value == nothing) {
      return std::nullopt;
    }
  } else if (store_->check({key})) {
    value = store_->get(key);
  } else {
    return std::nullopt;
  }
  return std::string(value.begin(), value.end());
}

Status C10dStore::set(const std::string& key, std::string_view value) {
  try {
    store_->set(key, storeBytes(value));
    return Status::ok();
  } catch (const std::exception& error) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store refused to set key '{}': {}", key, error.what()));
  }
}

Result<std::string> C10dStore::get(const std::string& key, Deadline deadline) {
  try {
    InterruptibleWait slices(deadline);
    std::optional<std::string> value;
    while (!(value = look(key)).has_value()) {
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
    return std::move(*value);
  } catch (const std::exception& error) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store failed while waiting for key '{}': {}", key, error.what()));
  }
}

}  // namespace shardwire::internal
