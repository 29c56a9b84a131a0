#include "backend/transport/wire_doorbell.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "backend/base/futex.h"
#include "backend/base/system_error.h"
#include "backend/transport/longest_sleep.h"

namespace shardwire::internal {
namespace {

// How long a sleeper stays away from a wire that cannot wake it. Two looks of half a microsecond in it cost 1 % of a core.
constexpr Duration kNap = std::chrono::microseconds(100);

}  // namespace

WireDoorbell::WireDoorbell(std::unique_ptr<Doorbell> bell, std::vector<Wire*> wires) : bell_(std::move(bell)), wires_(std::move(wires)) {
  mustNap_ = std::any_of(wires_.begin(), wires_.end(), [](const Wire* wire) { return wire->readinessFd() < 0; });
}

Result<std::unique_ptr<Doorbell>> WireDoorbell::create(std::unique_ptr<Doorbell> bell, const std::vector<std::unique_ptr<Wire>>& wires) {
  std::vector<Wire*> all;
  bool canWatch = false;
  for (const auto& wire : wires) {
    all.push_back(wire.get());
    canWatch |= wire->readinessFd() >= 0;
  }
  std::unique_ptr<WireDoorbell> made(new WireDoorbell(std::move(bell), std::move(all)));
  if (canWatch) {
    made->stopFd_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!made->stopFd_.isOpen()) {
      return systemError("making an eventfd", errno);
    }
    made->watcher_ = std::thread([raw = made.get()] { raw->watch(); });
  }
  return std::unique_ptr<Doorbell>(std::move(made));
}

WireDoorbell::~WireDoorbell() {
  stop_.store(true, std::memory_order_seq_cst);
  if (watcher_.joinable()) {
    const std::uint64_t one = 1;
    (void)!::write(stopFd_.get(), &one, sizeof one);
    armed_.store(1, std::memory_order_seq_cst);
    futexWakeAll(armed_);
    watcher_.join();
  }
}

std::uint32_t WireDoorbell::arm() {
  const std::uint32_t ticket = bell_->arm();
  for (Wire* wire : wires_) {
    wire->prepareToSleep();
  }
  // The watcher looks at the descriptors after it sees this, and the caller polls the wires after this returns: what comes before the poll
  // is found by the poll, what comes later makes a descriptor readable.
  if (watcher_.joinable() && armed_.exchange(1, std::memory_order_seq_cst) == 0) {
    futexWakeAll(armed_);
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

void WireDoorbell::watch() {
  std::vector<pollfd> fds;
  for (const Wire* wire : wires_) {
    if (wire->readinessFd() >= 0) {
      fds.push_back({wire->readinessFd(), POLLIN, 0});
    }
  }
  fds.push_back({stopFd_.get(), POLLIN, 0});
  while (!stop_.load(std::memory_order_seq_cst)) {
    if (armed_.load(std::memory_order_seq_cst) == 0) {
      futexWait(armed_, 0, longestSleep());
      continue;
    }
    const int ready = ::poll(fds.data(), fds.size(), -1);
    // Once per arming: whoever is woken arms again before it sleeps again. One that was disarmed meanwhile needs no ring.
    if (ready > 0 && armed_.exchange(0, std::memory_order_seq_cst) == 1) {
      bell_->ringSelf();
    }
  }
}

}  // namespace shardwire::internal
