// The progress bell of a simulated process. The product's own progress thread sleeps on the bell for ever, while the
// process calls the engines in the thread's place (process.h).
#pragma once

#include <functional>
#include <memory>

#include "backend/fabric/doorbell.h"

namespace shardwire::simulate {

class ParkedBell final : public internal::ProgressBell {
 public:
  ParkedBell();
  ~ParkedBell() override;
  // A bell without an owner, used again by later simulations. `onRing`: called by each ring, until giveBack().
  static std::shared_ptr<ParkedBell> take(std::function<void()> onRing);
  void giveBack() { onRing_ = nullptr; }

  std::uint32_t ticket() const override { return 0; }
  void sleep(std::uint32_t ticket, Deadline until) override;
  void ring() override;

 private:
  class Parking;
  friend struct Threads;

  std::function<void()> onRing_;
  const std::unique_ptr<Parking> parking_;
};

}  // namespace shardwire::simulate
