#include "tests/simulate/bell.h"

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/exec/progress_thread.h"

namespace shardwire::simulate {

using internal::ProgressThread;

// Where the product's progress thread sleeps while the simulation does the thread's work. Kept for all simulations of
// this program: threads start and end in real time.
class ParkedBell::Parking {
 public:
  // Returns when `isOver`.
  void sleep() {
    std::unique_lock lock(mutex_);
    isParked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return isOver_; });
  }
  void waitUntilParked() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return isParked_; });
  }
  void end() {
    const std::lock_guard lock(mutex_);
    isOver_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool isParked_ = false;
  bool isOver_ = false;
};

// The bells with their parked threads, to be used again by the next simulation.
struct Threads {
  struct Parked {
    std::shared_ptr<ParkedBell> bell;
    std::shared_ptr<ProgressThread> thread;
  };
  std::vector<Parked> all;

  ~Threads() {
    for (Parked& each : all) {
      each.bell->parking_->end();
      each.thread.reset();
    }
  }
};

ParkedBell::ParkedBell() : parking_(std::make_unique<Parking>()) {}

ParkedBell::~ParkedBell() = default;

void ParkedBell::sleep(std::uint32_t, Deadline) {
  parking_->sleep();
}

void ParkedBell::ring() {
  if (onRing_ != nullptr) {
    onRing_();
  }
}

std::shared_ptr<ParkedBell> ParkedBell::take(std::function<void()> onRing) {
  static Threads threads;
  for (const auto& each : threads.all) {
    if (each.bell->onRing_ == nullptr) {
      each.bell->onRing_ = std::move(onRing);
      return each.bell;
    }
  }
  auto bell = std::make_shared<ParkedBell>();
  threads.all.push_back({bell, ProgressThread::of(bell)});
  bell->parking_->waitUntilParked();
  bell->onRing_ = std::move(onRing);
  return bell;
}

}  // namespace shardwire::simulate
