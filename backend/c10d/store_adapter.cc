// One request to the store goes through ask(): a thread of ours makes torch's call, and the caller waits for the answer
// until the deadline, in slices in which Ctrl-C is noticed. After a request without an answer every later request fails
// at once. look() is one request for the value of a key. get() repeats look() until the key is there, and pauses longer
// the longer the group has been waited for. set() is one request.
#include "backend/c10d/store_adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "backend/base/interruptible_wait.h"
#include "backend/base/mutex.h"
#include "backend/base/per_process.h"
#include "backend/c10d/callback_threads.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;

// The stores' own waits are off by up to two seconds (FileStore counts whole seconds), log warnings at their end
// (TCPStore), block every other use of the store, and ignore Ctrl-C. So get() polls keys. The pause grows with the time
// that the group has been waited for: a value is noticed late by at most a tenth of this time, and a thousand waiting
// ranks send the store 5,000 requests a second.
constexpr Duration kShortestPause = milliseconds(1);
constexpr Duration kLongestPause = milliseconds(200);
constexpr int kAsksPerWait = 10;
// For an answer to a request made after the timeout: which ranks are absent, and the errors of other ranks.
constexpr Duration kLastAnswer = milliseconds(500);

// A value that no rank ever writes.
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

// Shared with the requesting thread, which may be left behind.
struct Answer {
  Result<std::optional<std::string>> found =
      std::optional<std::string>();  // owned by the requesting thread until `said` is set
  Mutex mutex;
  ConditionVariable came;
  std::optional<Result<std::optional<std::string>>> said SW_GUARDED_BY(mutex);
};

}  // namespace

C10dStore::C10dStore(StorePtr store, Duration timeout)
    : store_(std::move(store)), isTcp_(isTcpStore(store_)), timeout_(timeout) {}

Result<C10dStore::Value> C10dStore::ask(const std::string& what, std::function<Value(::c10d::Store&)> question) {
  if (isSilent_) {
    return Status(
        StatusCode::kSystem,
        fmt::format("the request to {} was not sent: the c10d store did not answer an earlier request", what));
  }
  deadline_ = deadline_.value_or(deadlineAfter(timeout_));
  const auto answer = std::make_shared<Answer>();
  const auto asking = [answer, what, store = store_, question = std::move(question)] {
    try {
      answer->found = question(*store);
    } catch (const std::exception& error) {
      answer->found = Status(StatusCode::kSystem,
                             fmt::format("the c10d store failed on the request to {}: {}", what, error.what()));
    }
  };
  // A thread stays for the next request.
  const Status posted = PerProcess<CallbackThreads>::get().post(asking, [answer] {
    const MutexLock lock(answer->mutex);
    answer->said = std::move(answer->found);
    answer->came.notifyOne();
  });
  if (!posted.isOk()) {
    return Status(posted.code(), fmt::format("no thread starts for the request to {} at the c10d store: {}; raise the "
                                             "limit of processes (ulimit -u), or start fewer threads",
                                             what, posted.message()));
  }
  Deadline until = std::max(*deadline_, Clock::now() + kLastAnswer);
  bool isInterrupted = false;
  InterruptibleWait slices(until);
  const MutexLock lock(answer->mutex);
  while (!answer->said.has_value() && !isSilent_) {
    answer->came.waitUntil(answer->mutex, std::min(until, slices.sliceEnd()));
    if (slices.isInterrupted()) {
      isInterrupted = true;
      until = std::min(until, Clock::now() + kLastAnswer);  // other ranks are to be notified through this store
    }
    isSilent_ = !answer->said.has_value() && Clock::now() >= until;
  }
  if (isInterrupted) {
    return interruptedStatus(fmt::format("asking the c10d store to {}", what));
  }
  if (isSilent_) {
    return Status(StatusCode::kSystem, fmt::format("the c10d store did not answer the request to {}: the store's host "
                                                   "has stopped, or the network loses packets",
                                                   what));
  }
  return std::move(*answer->said);
}

// One request to a TCPStore, where check() and get() need three. compareSet() returns the present value of the key, or,
// without a value, the expected value. compareSet() changes nothing here, since the expected value and the new value
// are equal.
Result<C10dStore::Value> C10dStore::look(const std::string& key) {
  return ask(fmt::format("look for key '{}'", key), [key, isTcp = isTcp_](::c10d::Store& store) -> Value {
    std::vector<std::uint8_t> value;
    if (isTcp) {
      const std::vector<std::uint8_t> nothing = storeBytes(kNothing);
      value = store.compareSet(key, nothing, nothing);
      if (value == nothing) {
        return std::nullopt;
      }
    } else if (store.check({key})) {
      value = store.get(key);
    } else {
      return std::nullopt;
    }
    return std::string(value.begin(), value.end());
  });
}

Status C10dStore::set(const std::string& key, std::string_view value) {
  return ask(fmt::format("set key '{}'", key),
             [key, bytes = storeBytes(value)](::c10d::Store& store) -> Value {
               store.set(key, bytes);
               return std::nullopt;
             })
      .status();
}

Result<std::string> C10dStore::get(const std::string& key, Deadline deadline) {
  InterruptibleWait slices(deadline);
  while (true) {
    Result<Value> value = look(key);
    SW_RETURN_IF_ERROR(value.status());
    if (value->has_value()) {
      return std::move(**value);
    }
    const Deadline now = Clock::now();
    if (now >= deadline) {
      return Status(StatusCode::kTimeout, fmt::format("key '{}' did not appear in the c10d store in time", key));
    }
    const Deadline next =
        std::min(deadline, now + std::clamp<Duration>((now - made_) / kAsksPerWait, kShortestPause, kLongestPause));
    while (Clock::now() < next) {
      std::this_thread::sleep_until(std::min(next, slices.sliceEnd()));
      if (slices.isInterrupted()) {
        return interruptedStatus(fmt::format("waiting for key '{}' of the c10d store", key));
      }
    }
  }
}

}  // namespace shardwire::internal
