// Sleeping on a word of memory that may be shared between processes. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "shardwire/export.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// Sleeps while `word` holds `expected`, for at most `timeout`. Returns when woken, at the timeout, at once when the
// word differs, or spuriously (a signal).
void futexWait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Duration timeout);

// Wakes every sleeper on `word`, in all processes.
void futexWakeAll(const std::atomic<std::uint32_t>& word);

// For a word of this process alone: futexWait() without a timeout, and the wake-up of one sleeper. Exported for Mutex.
SHARDWIRE_EXPORT void futexWaitInProcess(const std::atomic<std::uint32_t>& word, std::uint32_t expected);
SHARDWIRE_EXPORT void futexWakeOneInProcess(const std::atomic<std::uint32_t>& word);

}  // namespace shardwire::internal
