// The words of a rank's doorbell, which lie in the rank's inbox, where peers of this host ring the bell too, or in
// private memory, where only threads of this process ring. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "backend/base/futex.h"
#include "backend/fabric/doorbell.h"
#include "shardwire/status.h"

namespace shardwire::internal {

struct alignas(64) BellWords {
  std::atomic<std::uint32_t> bell;   // counts rings; sleepers wait on it
  std::atomic<std::uint32_t> armed;  // Wakes: a ring is for these threads
};

// Rings for the threads for which the bell is armed, and disarms the bell; `ringProgress` rings the progress bell of
// the rank's process. The caller stored its change seq_cst before this. The owner stores `armed` and then looks for
// changes, both seq_cst too: either this load sees the bell armed, or the owner sees the change. Of several callers
// that see the bell armed, one rings; the other callers' changes precede this ring, or the woken owner's look sees the
// changes.
template <typename RingProgress>
void ringIfArmed(BellWords& words, RingProgress ringProgress) {
  if (words.armed.load(std::memory_order_seq_cst) == 0) {
    return;
  }
  const std::uint32_t armed = words.armed.exchange(0, std::memory_order_seq_cst);
  if ((armed & static_cast<std::uint32_t>(Wakes::kSleepers)) != 0) {
    words.bell.fetch_add(1, std::memory_order_seq_cst);
    futexWakeAll(words.bell);
  }
  if ((armed & static_cast<std::uint32_t>(Wakes::kProgress)) != 0) {
    ringProgress();
  }
}

class RankBell {
 public:
  virtual ~RankBell() = default;
  virtual BellWords& words() = 0;
  // Doorbell::leaveWord() and Doorbell::leave(), stored where peers look for the word.
  virtual void leaveWord(const Status& /*why*/) {}
  virtual void leave() {}
};

// The bell of a rank without shared memory.
class PrivateBell final : public RankBell {
 public:
  BellWords& words() override { return words_; }

 private:
  BellWords words_{};
};

}  // namespace shardwire::internal
