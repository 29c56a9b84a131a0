// The doorbell of one rank over shared memory: a futex word in its inbox. Any thread.
#pragma once

#include <atomic>
#include <memory>

#include "backend/transport/shm/inbox.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

class ShmDoorbell final : public Doorbell {
 public:
  explicit ShmDoorbell(std::shared_ptr<Inbox> inbox);
  ~ShmDoorbell() override;

  std::uint32_t arm(Wakes whom) override;
  void disarm() override;
  std::uint32_t ticket() const override;
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ringSelf() override;
  std::shared_ptr<ProgressBell> progressBell() override;
  void leaveWord(const Status& why) override;
  void leave() override;

 private:
  std::shared_ptr<Inbox> inbox_;
  std::atomic<int> numSleeping_{0};
};

}  // namespace shardwire::internal
