// Moves the tensors of operations between devices and host copies: one per group, with a thread that starts at the first such operation.
//
// The thread asks and never waits for a device: an operation's copies begin once the event that its caller recorded is over, each segment
// is told to the run as it comes, and goes back as it becomes final. Copies run on two streams of the group's own per device, in which
// nothing but copies is ever queued, so that no order of the users' streams can block them. Any thread.
#pragma once

#include <c10/core/Event.h>

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/c10d/callback_threads.h"
#include "backend/c10d/pinned_pool.h"
#include "backend/c10d/staged_tensors.h"
#include "backend/c10d/staged_work.h"

namespace shardwire::internal {

class DeviceStager : public std::enable_shared_from_this<DeviceStager> {
 public:
  // `fail` poisons the group: called when a device refuses a copy.
  static std::shared_ptr<DeviceStager> create(std::size_t stagingBytes, std::function<void(const std::string&)> fail);
  ~DeviceStager();

  // Host memory for a copy of `bytes`; `direct`: the device reads and writes it by itself. Throws when there is none.
  std::shared_ptr<std::byte> takeMemory(std::size_t bytes, bool* direct);
  // kUnsupported when the device cannot take part: no streams of its own, or its current stream is being captured.
  Status checkDevice(const c10::Device& device);
  // Starts moving the tensors of an operation that was issued on this thread.
  std::shared_ptr<StagedWork> begin(std::shared_ptr<StagedTensors> tensors, WorkPtr transport, bool hasHostTensors,
                                    std::shared_ptr<void> keepAlive);
  // Waits for the operations that streams wait for already: whoever queued that relies on their end. Ok also when they fail, or
  // kInterrupted.
  Status finishAwaited(Deadline deadline);
  // Ends the thread, once the operations in flight are over: they end with the communicator. Waits some seconds at most. Idempotent.
  void stop();
  // For people: what memory is used, and of the devices seen so far whether their streams can wait. Empty when none was seen.
  std::string describe() const;

 private:
  struct Streams {
    c10::Stream load;
    c10::Stream drain;
  };
  // A copy that was queued.
  struct Copy {
    StagedTensors::Twin* twin;
    std::size_t segment;
    c10::Event event;
    std::shared_ptr<std::byte> slot;  // null: straight between the tensors
  };
  struct Operation {
    std::shared_ptr<StagedWork> work;
    std::vector<c10::Event> before;  // what the caller's streams had to do
    // Operations called earlier over the same memory: nothing is taken from the device or brought back before they are over.
    std::vector<std::weak_ptr<StagedWork>> earlier;
    std::deque<Copy> loading;  // in order
    std::deque<Copy> draining;
    std::size_t loadTwin = 0;  // next segment to load
    std::size_t loadSegment = 0;
    std::vector<std::vector<bool>> drained;  // by twin and segment: queued
    std::size_t drainTwin = 0;               // all before it are queued
    bool completed = false;
    bool isIdle() const { return loading.empty() && draining.empty(); }
  };

  DeviceStager(std::size_t stagingBytes, std::function<void(const std::string&)> fail);
  void kick();
  void waitForNews(int naps) SW_REQUIRES(mutex_);
  void takeArrived() SW_REQUIRES(mutex_);
  void run();
  bool stepAll();
  bool step(Operation& operation);
  bool stepLoads(Operation& operation);
  bool stepDrains(Operation& operation, bool isOver);
  bool queueLoad(Operation& operation);
  bool queueDrain(Operation& operation, std::size_t twin, std::size_t segment);
  std::shared_ptr<std::byte> takeSlot();
  void complete(Operation& operation, Status status);
  Streams streamsOf(const c10::Device& device);

  const std::shared_ptr<PinnedPool> pool_;
  const std::function<void(const std::string&)> fail_;
  CallbackThreads callbacks_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Streams> streams_ SW_GUARDED_BY(mutex_);
  std::list<Operation> arrived_ SW_GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<StagedWork>> recent_ SW_GUARDED_BY(mutex_);  // those in flight, and maybe some that are over
  bool kicked_ SW_GUARDED_BY(mutex_) = false;
  bool stopping_ SW_GUARDED_BY(mutex_) = false;
  bool running_ SW_GUARDED_BY(mutex_) = false;
  std::thread thread_ SW_GUARDED_BY(mutex_);

  const OwnerProcess owner_;
  std::list<Operation> operations_;  // the thread's own, like the rest
  std::vector<std::shared_ptr<std::byte>> slots_;
};

}  // namespace shardwire::internal
