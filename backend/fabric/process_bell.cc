#include "backend/fabric/process_bell.h"

#include <algorithm>

#include "backend/base/futex.h"
#include "backend/fabric/longest_sleep.h"

namespace shardwire::internal {

std::uint32_t ProcessBell::ticket() const {
  return word_.load(std::memory_order_seq_cst)->load(std::memory_order_seq_cst);
}

// A ticket of the word before moveTo() differs from all later values of the new word, so such a sleep returns at once.
void ProcessBell::sleep(std::uint32_t ticket, Deadline until) {
  const Deadline now = Clock::now();
  if (until <= now) {
    return;
  }
  // seq_cst with the load in ring(): either ring() sees this sleeper, or the wait below sees the ring.
  numSleeping_.fetch_add(1, std::memory_order_seq_cst);
  futexWait(*word_.load(std::memory_order_seq_cst), ticket, std::min<Duration>(until - now, longestSleep()));
  numSleeping_.fetch_sub(1, std::memory_order_relaxed);
}

// If the word moved meanwhile, the new word is rung too: a sleeper may have taken its ticket there before this ring.
void ProcessBell::ring() {
  std::atomic<std::uint32_t>* rung = nullptr;
  for (auto* word = word_.load(std::memory_order_seq_cst); word != rung; word = word_.load(std::memory_order_seq_cst)) {
    word->fetch_add(1, std::memory_order_seq_cst);
    if (numSleeping_.load(std::memory_order_seq_cst) > 0) {
      futexWakeAll(*word);
    }
    rung = word;
  }
}

void ProcessBell::moveTo(std::atomic<std::uint32_t>& word) {
  constexpr std::uint32_t kFarFromAnyTicket = std::uint32_t{1} << 31;
  word.store(own_.load(std::memory_order_seq_cst) + kFarFromAnyTicket, std::memory_order_seq_cst);
  word_.store(&word, std::memory_order_seq_cst);
  own_.fetch_add(1, std::memory_order_seq_cst);
  futexWakeAll(own_);
}

}  // namespace shardwire::internal
