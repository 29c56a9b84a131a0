#include "backend/transport/shm/shm_doorbell.h"

#include <algorithm>

#include "backend/base/futex.h"
#include "backend/fabric/longest_sleep.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {

ShmDoorbell::ShmDoorbell(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)) {}

ShmDoorbell::~ShmDoorbell() {
  inbox_->markLeft();
}

std::uint32_t ShmDoorbell::arm(Wakes whom) {
  InboxHeader& header = inbox_->header();
  const std::uint32_t ticket = header.bell.load(std::memory_order_seq_cst);
  // seq_cst: the caller's look at the rings comes after. See Inbox::ringIfArmed().
  header.armed.fetch_or(static_cast<std::uint32_t>(whom), std::memory_order_seq_cst);
  return ticket;
}

void ShmDoorbell::disarm() {
  inbox_->header().armed.store(0, std::memory_order_relaxed);  // a ring too many does no harm
}

std::uint32_t ShmDoorbell::ticket() const {
  return inbox_->header().bell.load(std::memory_order_seq_cst);
}

void ShmDoorbell::sleep(std::uint32_t ticket, Deadline until) {
  const Deadline now = Clock::now();
  if (until <= now) {
    return;
  }
  // seq_cst with the load in ringSelf(): either it sees this sleeper, or the wait below sees its ring.
  numSleeping_.fetch_add(1, std::memory_order_seq_cst);
  futexWait(inbox_->header().bell, ticket, std::min(until - now, longestSleep()));
  numSleeping_.fetch_sub(1, std::memory_order_relaxed);
}

void ShmDoorbell::ringSelf() {
  InboxHeader& header = inbox_->header();
  header.bell.fetch_add(1, std::memory_order_seq_cst);
  if (numSleeping_.load(std::memory_order_seq_cst) > 0) {
    futexWakeAll(header.bell);
  }
}

std::shared_ptr<ProgressBell> ShmDoorbell::progressBell() {
  return {inbox_->fabric(), &inbox_->fabric()->progressBell()};
}

void ShmDoorbell::leaveWord(const Status& why) {
  inbox_->leaveWord(why);
}

void ShmDoorbell::leave() {
  inbox_->markLeft();
}

}  // namespace shardwire::internal
