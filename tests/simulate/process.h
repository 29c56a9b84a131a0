// The process of one simulated rank: the calling thread (a fiber), the progress thread (looks at the engine at the
// times of the product's thread), the bells, and one clock for both threads. A process may be stopped for a time, and
// may die with any sent frame. One thread runs all processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "backend/exec/progress_thread.h"
#include "backend/fabric/doorbell.h"
#include "tests/simulate/fiber.h"
#include "tests/simulate/world.h"

namespace shardwire::simulate {

class Process {
 public:
  Process(World& world, Rank rank, std::function<void()> main);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Rank rank() const { return rank_; }
  World& world() { return world_; }
  // The clock of the process, read without the costs of a look.
  Time time() const { return time_; }
  bool isDead() const { return isDead_; }
  bool isOver() const { return fiber_.isOver(); }

  // ---- for the calling thread
  void computeFor(Time duration);
  std::unique_ptr<internal::Doorbell> makeDoorbell();
  // The engine whose progress thread this process simulates.
  void serve(std::weak_ptr<internal::Progressed> engine);

  // ---- for the links
  // A release of a peer arrived: rings if the bell is armed, as in the product.
  void ringIfArmed();
  // A frame or a fetch arrived at `since`, and was sent when the world had planned `numEvents` events. A bell that was
  // armed afterwards, and for a time behind `since`, does not ring: the poll behind the arming finds the frame.
  void ringIfArmed(Time since, std::uint64_t numEvents);
  // A frame that every poll takes arrived at `since`, and nobody has taken the frame: if no thread is about to poll,
  // the rank missed a wake-up.
  void checkWakes(Time since, const std::string& frame);
  // "" or the first missed wake-up.
  const std::string& missedWake() const { return missedWake_; }
  // `isWaiting`: whether the rank's threads must take frames. Set before the first turn.
  void setIsWaiting(std::function<bool()> isWaiting) { isWaiting_ = std::move(isWaiting); }
  // A link to a late peer has news: rings the progress bell, too.
  void ringForNews();

  // ---- faults
  void stopUntil(Time when);
  // Another thread of the process runs `action`, unless the process is dead or over by then.
  void act(std::function<void()> action);
  // From here on the process does nothing. The memory stays until clear().
  void die();
  // Ends the calling thread of a dead process: `reset` ends all waits of the thread.
  void clear(const std::function<void()>& reset);

  class Bell;

 private:
  class Door;

  void pauseUntil(Time when);
  void wakeAt(Time when);
  void resume(std::uint64_t number);
  void sleepOnBell(std::uint32_t ticket, Time until);
  void lookAt(Time when);
  void look(std::uint64_t number);
  // Runs one turn of a thread, from the time of the current event on.
  template <typename Part>
  void spend(Part part);
  Time readyAt() const;

  World& world_;
  const Rank rank_;
  Time time_;
  Time stoppedUntil_ = 0;
  const std::function<void(Time)> sleep_ = [this](Time duration) { computeFor(duration); };
  bool isDead_ = false;
  bool isCleared_ = false;

  Fiber fiber_;
  std::uint64_t wakeNumber_ = 0;  // of the latest resumption asked for; earlier ones are void
  Time wakeAt_ = kNever;
  bool sleepsOnBell_ = false;

  std::uint32_t rings_ = 0;
  std::uint32_t armed_ = 0;
  Time armedAt_ = 0;
  std::uint64_t armedAfter_ = 0;  // events planned before the latest arming
  std::function<bool()> isWaiting_;
  std::string missedWake_;

  std::weak_ptr<internal::Progressed> engine_;
  std::shared_ptr<Bell> bell_;
  std::uint64_t lookNumber_ = 0;
  Time nextLook_ = kNever;
  bool isLooking_ = false;
  bool hasRungProgress_ = false;
};

}  // namespace shardwire::simulate
