// The doorbell of one rank over the rank's futex words (RankBell), for any transport. Any thread.
#pragma once

#include <atomic>
#include <memory>

#include "backend/fabric/doorbell.h"
#include "backend/fabric/fabric.h"
#include "backend/fabric/rank_bell.h"

namespace shardwire::internal {

class RankDoorbell final : public Doorbell {
 public:
  RankDoorbell(std::shared_ptr<Fabric> fabric, std::shared_ptr<RankBell> bell);
  ~RankDoorbell() override;

  std::uint32_t arm(Wakes whom) override;
  void disarm() override;
  std::uint32_t ticket() const override;
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ringSelf() override;
  std::shared_ptr<ProgressBell> progressBell() override;
  void leaveWord(const Status& why) override { bell_->leaveWord(why); }
  void leave() override { bell_->leave(); }

 private:
  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<RankBell> bell_;
  BellWords& words_;
  std::atomic<int> numSleeping_{0};
};

}  // namespace shardwire::internal
