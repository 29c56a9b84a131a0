// The doorbell of a rank that is joined to others by wires as well as by shared memory. A watcher thread waits on the wires' descriptors
// while the bell is armed and nobody looks, and rings the shared-memory bell, on which all sleepers of the rank wait. Any thread.
//
// Why a thread: sleepers wait on one futex word, which peers on this host write; the kernel has no wait for a futex and descriptors at
// once. It costs a hand-over, some 5 us, and only to those who sleep: whoever spins polls the wires by himself.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "backend/base/fd.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class WireDoorbell final : public Doorbell {
 public:
  // `bell` is the rank's own; `wires` outlive this. kSystem when a descriptor cannot be made.
  static Result<std::unique_ptr<Doorbell>> create(std::unique_ptr<Doorbell> bell, const std::vector<std::unique_ptr<Wire>>& wires);
  ~WireDoorbell() override;

  std::uint32_t arm() override;
  void disarm() override;
  std::uint32_t ticket() const override { return bell_->ticket(); }
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ringSelf() override { bell_->ringSelf(); }
  void holdLiveness() override { bell_->holdLiveness(); }
  void leave() override { bell_->leave(); }

 private:
  WireDoorbell(std::unique_ptr<Doorbell> bell, std::vector<Wire*> wires);
  void watch();

  const std::unique_ptr<Doorbell> bell_;
  const std::vector<Wire*> wires_;
  bool mustNap_ = false;  // some wire has no descriptor
  Fd stopFd_;             // an eventfd that ends the watcher
  // 1: a frame shall ring. seq_cst on both sides: see arm() and watch().
  std::atomic<std::uint32_t> armed_{0};
  std::atomic<bool> stop_{false};
  std::thread watcher_;  // not joinable when no wire has a descriptor
};

}  // namespace shardwire::internal
