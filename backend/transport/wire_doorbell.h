// The doorbell of a rank that is joined to peers by wires as well as by shared memory. The fabric's thread watches the
// wires' descriptors while the bell is armed, and rings the shared-memory bell, on which all sleepers of the rank wait.
// Any thread.
//
// Why a thread: sleepers wait on one futex word, which peers on this host write; the kernel has no wait for a futex and
// descriptors at once. The handover costs some 5 us, and only for sleepers: a spinning thread polls the wires directly.
// One thread does this for all groups of the process.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "backend/fabric/fd_watches.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class WireDoorbell final : public Doorbell {
 public:
  // `bell` is the rank's own; `wires` outlive this object. Errors of FdWatch::create().
  static Result<std::unique_ptr<Doorbell>> create(std::unique_ptr<Doorbell> bell,
                                                  const std::vector<std::unique_ptr<Wire>>& wires,
                                                  const std::shared_ptr<FdWatches>& watches);

  std::uint32_t arm(Wakes whom) override;
  void disarm() override;
  std::uint32_t ticket() const override { return bell_->ticket(); }
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ringSelf() override { bell_->ringSelf(); }
  std::shared_ptr<ProgressBell> progressBell() override { return bell_->progressBell(); }
  Duration longestNap() const override;
  void leaveWord(const Status& why) override { bell_->leaveWord(why); }
  void leave() override { bell_->leave(); }

 private:
  WireDoorbell(std::unique_ptr<Doorbell> bell, std::vector<Wire*> wires);
  void ringArmed();

  const std::unique_ptr<Doorbell> bell_;
  const std::shared_ptr<ProgressBell> progressBell_;
  const std::vector<Wire*> wires_;
  bool mustNap_ = false;  // some wire has no descriptor
  // Wakes: the threads that the next frame wakes. seq_cst on both sides: see arm() and ringArmed().
  std::atomic<std::uint32_t> armed_{0};
  std::vector<std::unique_ptr<FdWatch>> watches_;  // of the wires with a descriptor; last member: destroyed first
};

}  // namespace shardwire::internal
