// A simulated process: the calling threads (fibers), the progress thread (looks at the engines of all groups at the
// times of the product's thread), the bells, and one clock for all threads. A process may be stopped for a time, and
// may die with any sent frame. One thread runs all processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/exec/progress_thread.h"
#include "backend/fabric/doorbell.h"
#include "tests/simulate/bell.h"
#include "tests/simulate/fiber.h"
#include "tests/simulate/world.h"

namespace shardwire::simulate {

class Process {
 public:
  // `rank`: the number of the process, which is the rank where there is one group. `numGroups`: of the simulation.
  Process(World& world, Rank rank, std::size_t numGroups);
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  // A calling thread, which begins within a millisecond.
  void addThread(std::function<void()> main);

  Rank rank() const { return rank_; }
  World& world() { return world_; }
  // The clock of the process, read without the costs of a look.
  Time time() const { return time_; }
  bool isDead() const { return diedAt_ != kNever; }
  // kNever: the process lives.
  Time diedAt() const { return diedAt_; }
  // The process whose thread runs now; null between two turns.
  static Process* running();
  // Before this time the process does nothing.
  Time stoppedUntil() const { return stoppedUntil_; }
  // All calling threads have ended.
  bool isOver() const;

  // ---- for the calling threads
  void computeFor(Time duration);
  std::unique_ptr<internal::Doorbell> makeDoorbell(std::size_t group);
  // An engine whose progress thread this process simulates.
  void serve(std::weak_ptr<internal::Progressed> engine);

  // ---- for the links
  // A release of a peer arrived: rings if the group's bell is armed, as in the product.
  void ringIfArmed(std::size_t group);
  // A frame or a fetch arrived at `since`, and was sent when the world had planned `numEvents` events. A bell that was
  // armed afterwards, and for a time behind `since`, does not ring: the poll behind the arming finds the frame.
  void ringIfArmed(std::size_t group, Time since, std::uint64_t numEvents);
  // A frame that every poll takes arrived at `since`, and nobody has taken the frame: if no thread is about to poll,
  // the rank missed a wake-up. `frame` describes the frame.
  void checkWakes(std::size_t group, Time since, const std::function<std::string()>& frame);
  // "" or the first missed wake-up.
  const std::string& missedWake() const { return missedWake_; }
  // `isWaiting`: whether the process's threads must take frames of the group. Set before the first turn.
  void setIsWaiting(std::size_t group, std::function<bool()> isWaiting);
  // A link to a late peer has news: rings the progress bell, too.
  void ringForNews(std::size_t group);
  // The process sends one more frame.
  void countFrame();

  // ---- faults
  void stopUntil(Time when);
  // Another thread of the process runs `action`, unless the process is dead or over by then.
  void act(std::function<void()> action);
  // `end` is called within the turn that sends this many more frames.
  void endAfterFrames(int numFrames, std::function<void()> end);
  // From here on the process does nothing. The memory stays until clear().
  void die();
  // Ends the calling threads of a dead process: `reset` ends all waits of the threads.
  void clear(const std::function<void()>& reset);

 private:
  class Door;

  struct Thread {
    explicit Thread(std::function<void()> main) : fiber(std::move(main)) {}
    Fiber fiber;
    std::uint64_t wakeNumber = 0;  // of the latest resumption asked for; earlier ones are void
    Time wakeAt = kNever;
    int sleepsOn = -1;  // the group of the bell on which the thread sleeps
  };
  // The doorbell of one group.
  struct Bell {
    std::uint32_t rings = 0;
    std::uint32_t armed = 0;
    Time armedAt = 0;
    std::uint64_t armedAfter = 0;  // events planned before the latest arming
    std::function<bool()> isWaiting;
  };

  void pauseUntil(Time when);
  void wakeAt(Thread& thread, Time when);
  void resume(Thread& thread, std::uint64_t number);
  void sleepOnBell(std::size_t group, std::uint32_t ticket, Time until);
  void ringProgress(Time when);
  void ringProgressSoon(Time now);
  void lookAt(Time when);
  void look(std::uint64_t number);
  // Runs one turn of a thread, from the time of the current event on.
  template <typename Part>
  void spend(Part part);
  Time readyAt() const;
  Time drawWake();

  World& world_;
  const Rank rank_;
  Time time_;
  Time stoppedUntil_ = 0;
  const std::function<void(Time)> sleep_ = [this](Time duration) { computeFor(duration); };
  Time diedAt_ = kNever;
  bool isCleared_ = false;
  int framesLeft_ = -1;
  std::function<void()> end_;

  std::vector<std::unique_ptr<Thread>> threads_;
  Thread* current_ = nullptr;  // the thread whose turn it is
  std::size_t numEnded_ = 0;
  std::vector<Bell> bells_;  // by group
  std::string missedWake_;

  std::vector<std::weak_ptr<internal::Progressed>> engines_;
  std::shared_ptr<ParkedBell> progressBell_;
  std::uint64_t lookNumber_ = 0;
  Time nextLook_ = kNever;
  bool isLooking_ = false;
  bool hasRungProgress_ = false;
};

}  // namespace shardwire::simulate
