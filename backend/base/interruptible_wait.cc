#include "backend/base/interruptible_wait.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "shardwire/interrupt.h"

namespace shardwire {
namespace internal {
namespace {

constexpr Duration kFirstLook = std::chrono::milliseconds(50);
constexpr Duration kSignalsEvery = std::chrono::milliseconds(100);

std::atomic<InterruptCheck> installed{nullptr};  // acquire, release: what the check reads was set up before
thread_local int numScopesWithout = 0;
thread_local std::uint64_t numInterruptsHere = 0;

}  // namespace

InterruptibleWait::InterruptibleWait(Deadline until) : until_(until) {
  if (numScopesWithout == 0 && installed.load(std::memory_order_acquire) != nullptr) {
    nextLook_ = Clock::now() + kFirstLook;
  }
}

Deadline InterruptibleWait::sliceEnd() const {
  return std::min(until_, nextLook_);
}

bool InterruptibleWait::isInterrupted() {
  if (nextLook_ == kNoDeadline) {
    return false;
  }
  const auto now = Clock::now();
  if (now < nextLook_) {
    return false;
  }
  nextLook_ = now + kSignalsEvery;
  const InterruptCheck check = installed.load(std::memory_order_acquire);
  const bool isInterrupted = check != nullptr && check();
  numInterruptsHere += isInterrupted ? 1 : 0;
  return isInterrupted;
}

NoInterrupts::NoInterrupts() {
  ++numScopesWithout;
}

NoInterrupts::~NoInterrupts() {
  --numScopesWithout;
}

std::uint64_t numInterrupts() {
  return numInterruptsHere;
}

Status interruptedStatus(std::string_view what) {
  return {StatusCode::kInterrupted, fmt::format("{} was interrupted by a signal (Ctrl-C?)", what)};
}

}  // namespace internal

void setInterruptCheck(InterruptCheck check) {
  internal::installed.store(check, std::memory_order_release);
}

}  // namespace shardwire
