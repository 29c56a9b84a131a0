// Moves the tensors of operations between devices and host copies: one per group, with a thread that starts at the
// first such operation.
//
// The thread polls devices and never blocks on one. The copies of an operation begin once the caller's event is over.
// The run is notified of each segment as the segment arrives, and each segment is copied back as soon as it is final.
// Copies run on two streams of the group's own per device. Nothing but copies is ever queued in these streams, so no
// order of the users' streams can block them. Any thread.
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
  // `fail` poisons the group: called when a device refuses a copy or an event.
  static std::shared_ptr<DeviceStager> create(std::size_t stagingBytes, std::function<void(const std::string&)> fail);
  ~DeviceStager();

  // Host memory for a copy of `bytes`; `direct`: the device itself reads and writes the memory. Throws when there is
  // none.
  std::shared_ptr<std::byte> takeMemory(std::size_t bytes, bool* direct);
  // kUnsupported when the device cannot take part: no streams of its own, or its current stream is being captured.
  Status checkDevice(const c10::Device& device);
  // Starts to move the tensors of an operation issued on this thread. Throws, and the group fails, when an event or the
  // thread cannot be made.
  std::shared_ptr<StagedWork> begin(std::shared_ptr<StagedTensors> tensors, WorkPtr transport, bool hasHostTensors,
                                    std::shared_ptr<void> keepAlive);
  // Waits for the operations that streams already wait for: the code that queued a gate relies on the end of the
  // operation. Ok also when the operations fail; or kInterrupted.
  Status finishAwaited(Deadline deadline);
  // Ends the thread once the operations in flight are over: operations end with the communicator. Waits some seconds at
  // most. Idempotent.
  void stop();
  // A text for people: the kind of memory in use, and for each device seen so far whether its streams can wait. Empty
  // when none was seen.
  std::string describe() const;

 private:
  struct Streams {
    c10::Stream load;
    c10::Stream drain;
  };
  // A queued copy.
  struct Copy {
    StagedTensors::Twin* twin;
    std::size_t segment;
    c10::Event event;
    std::shared_ptr<std::byte> slot;  // null: straight between the tensors
  };
  struct Operation {
    std::shared_ptr<StagedWork> work;
    std::vector<c10::Event> before;  // the work in the caller's streams at the call
    // Operations called earlier over the same memory: nothing is taken from the device or brought back before all have
    // ended.
    std::vector<std::weak_ptr<StagedWork>> earlier;
    std::deque<Copy> loading;  // in order
    std::deque<Copy> draining;
    std::size_t loadTwin = 0;  // next segment to load
    std::size_t loadSegment = 0;
    std::vector<std::vector<bool>> drained;  // by twin and segment: queued
    std::size_t drainTwin = 0;               // all twins before this one are queued
    // Not ok: nothing more is queued, and the work ends with this error when the queued copies are over. Until then
    // they read and write the caller's tensors.
    Status failure;
    bool completed = false;
    bool wantsSlot = false;  // a copy waits for pinned memory, which no kick announces
    bool isIdle() const { return loading.empty() && draining.empty(); }
    bool isEnding() const { return completed || !failure.isOk(); }
    bool awaitsEvents() const { return (!completed && (!before.empty() || !failure.isOk())) || wantsSlot || !isIdle(); }
  };

  DeviceStager(std::size_t stagingBytes, std::function<void(const std::string&)> fail);
  std::shared_ptr<StagedWork> enqueue(std::shared_ptr<StagedTensors> tensors, WorkPtr transport, bool hasHostTensors,
                                      std::shared_ptr<void> keepAlive);
  void kick();
  void waitForNews(Clock::time_point moved) SW_REQUIRES(mutex_);
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
  std::vector<std::weak_ptr<StagedWork>> recent_
      SW_GUARDED_BY(mutex_);  // works in flight, and maybe some that are over
  bool kicked_ SW_GUARDED_BY(mutex_) = false;
  bool stopping_ SW_GUARDED_BY(mutex_) = false;
  bool running_ SW_GUARDED_BY(mutex_) = false;
  std::thread thread_ SW_GUARDED_BY(mutex_);

  const OwnerProcess owner_;
  std::list<Operation> operations_;  // the thread's own, like the rest
  std::vector<std::shared_ptr<std::byte>> slots_;
};

}  // namespace shardwire::internal
