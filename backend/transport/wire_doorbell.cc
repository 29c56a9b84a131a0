#include "backend/transport/wire_doorbell.h"

#include <sys/epoll.h>

#include <algorithm>

namespace shardwire::internal {
namespace {

// The time between a sleeper's looks at a wire that cannot wake the sleeper. Two looks of half a microsecond in this
// time cost 1 % of a core.
constexpr Duration kNap = std::chrono::microseconds(100);

}  // namespace

WireDoorbell::WireDoorbell(std::unique_ptr<Doorbell> bell, std::vector<Wire*> wires)
    : bell_(std::move(bell)), progressBell_(bell_->progressBell()), wires_(std::move(wires)) {
  mustNap_ = std::any_of(wires_.begin(), wires_.end(), [](const Wire* wire) { return wire->readinessFd() < 0; });
}

Result<std::unique_ptr<Doorbell>> WireDoorbell::create(std::unique_ptr<Doorbell> bell,
                                                       const std::vector<std::unique_ptr<Wire>>& wires,
                                                       const std::shared_ptr<FdWatches>& watches) {
  std::vector<Wire*> all;
  for (const auto& wire : wires) {
    all.push_back(wire.get());
  }
  std::unique_ptr<WireDoorbell> made(new WireDoorbell(std::move(bell), std::move(all)));
  for (const Wire* wire : made->wires_) {
    if (wire->readinessFd() < 0) {
      continue;
    }
    auto watch = FdWatch::create(watches, wire->readinessFd(), EPOLLIN, [raw = made.get()] {
      raw->ringArmed();
      return false;  // arm() requests the next event
    });
    SW_RETURN_IF_ERROR(watch.status());
    made->watches_.push_back(std::move(*watch));
  }
  return std::unique_ptr<Doorbell>(std::move(made));
}

Duration WireDoorbell::longestNap() const {
  return mustNap_ ? kNap : Duration::max();
}

std::uint32_t WireDoorbell::arm(Wakes whom) {
  const std::uint32_t ticket = bell_->arm(whom);
  for (Wire* wire : wires_) {
    wire->prepareToSleep();
  }
  // The kernel checks the descriptors once more when their watches are armed, and the caller polls the wires after this
  // returns: the poll finds earlier events, and later events make a descriptor readable.
  if (armed_.fetch_or(static_cast<std::uint32_t>(whom), std::memory_order_seq_cst) == 0) {
    for (const auto& watch : watches_) {
      watch->rearm();
    }
  }
  return ticket;
}

void WireDoorbell::disarm() {
  bell_->disarm();
  armed_.store(0, std::memory_order_seq_cst);
}

void WireDoorbell::sleep(std::uint32_t ticket, Deadline until) {
  bell_->sleep(ticket, mustNap_ ? std::min(until, Clock::now() + kNap) : until);
}

// Rings once per arming: a woken thread arms again before sleeping again. A bell that was disarmed meanwhile needs no
// ring.
void WireDoorbell::ringArmed() {
  const std::uint32_t armed = armed_.exchange(0, std::memory_order_seq_cst);
  if ((armed & static_cast<std::uint32_t>(Wakes::kSleepers)) != 0) {
    bell_->ringSelf();
  }
  if ((armed & static_cast<std::uint32_t>(Wakes::kProgress)) != 0) {
    progressBell_->ring();
  }
}

}  // namespace shardwire::internal
