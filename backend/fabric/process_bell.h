// The progress bell of this process: a futex word on which the progress thread sleeps. The word lies in private memory
// until the process shares memory with other processes of its host. Then the word lies in the page where these
// processes find the bell (ShmProcessPage), and they can ring it. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "backend/fabric/doorbell.h"

namespace shardwire::internal {

class ProcessBell final : public ProgressBell {
 public:
  std::uint32_t ticket() const override;
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ring() override;
  // From here on `word` counts the rings. The word must outlive the bell, and must not have been rung yet. At most
  // once.
  void moveTo(std::atomic<std::uint32_t>& word);

 private:
  std::atomic<std::uint32_t> own_{0};
  std::atomic<std::atomic<std::uint32_t>*> word_{&own_};
  std::atomic<int> numSleeping_{0};
};

}  // namespace shardwire::internal
