#include "backend/fabric/rank_doorbell.h"

#include <algorithm>
#include <utility>

#include "backend/base/futex.h"
#include "backend/fabric/longest_sleep.h"

namespace shardwire::internal {

RankDoorbell::RankDoorbell(std::shared_ptr<Fabric> fabric, std::shared_ptr<RankBell> bell)
    : fabric_(std::move(fabric)), bell_(std::move(bell)), words_(bell_->words()) {}

RankDoorbell::~RankDoorbell() {
  bell_->leave();
}

std::uint32_t RankDoorbell::arm(Wakes whom) {
  const std::uint32_t ticket = words_.bell.load(std::memory_order_seq_cst);
  // seq_cst: the caller's look for work comes after this store. See ringIfArmed().
  words_.armed.fetch_or(static_cast<std::uint32_t>(whom), std::memory_order_seq_cst);
  return ticket;
}

void RankDoorbell::disarm() {
  words_.armed.store(0, std::memory_order_relaxed);  // an extra ring does no harm
}

std::uint32_t RankDoorbell::ticket() const {
  return words_.bell.load(std::memory_order_seq_cst);
}

void RankDoorbell::sleep(std::uint32_t ticket, Deadline until) {
  const Deadline now = Clock::now();
  if (until <= now) {
    return;
  }
  // seq_cst with the load in ringSelf(): either ringSelf() sees this sleeper, or the wait below sees the ring.
  numSleeping_.fetch_add(1, std::memory_order_seq_cst);
  futexWait(words_.bell, ticket, std::min(until - now, longestSleep()));
  numSleeping_.fetch_sub(1, std::memory_order_relaxed);
}

void RankDoorbell::ringSelf() {
  words_.bell.fetch_add(1, std::memory_order_seq_cst);
  if (numSleeping_.load(std::memory_order_seq_cst) > 0) {
    futexWakeAll(words_.bell);
  }
}

std::shared_ptr<ProgressBell> RankDoorbell::progressBell() {
  return {fabric_, &fabric_->progressBell()};
}

}  // namespace shardwire::internal
