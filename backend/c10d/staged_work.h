// Works whose tensors lie on devices: a work is over when the last byte is on the device. Waiting for a work in torch's
// sense makes streams wait, not the CPU. All methods from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/c10d/torch_stream_gate.h"
#include "shardwire/work.h"

namespace shardwire::internal {

class StagedTensors;

class DeviceWork : public Work {
 public:
  // Work queued in the calling thread's current streams from now on runs after the operation. Returns to the CPU at
  // once if possible: when the devices have stream gates and all tensors of the operation lie on devices. Ok, or the
  // error of an operation that is over.
  virtual Status waitOnStreams() = 0;
  // The devices of the operation's tensors, each once.
  virtual std::vector<c10::Device> devices() const = 0;
  // For each device a stream that no user's work ever blocks, for callers that must set current streams.
  virtual std::vector<c10::Stream> streams() const = 0;
};

class DeviceStager;

class StagedWork final : public DeviceWork, public std::enable_shared_from_this<StagedWork> {
 public:
  // `transport`: the operation over the host copies; null when it was refused. `hasHostTensors`: some tensors of the
  // operation are CPU tensors.
  StagedWork(std::shared_ptr<StagedTensors> tensors, WorkPtr transport, bool hasHostTensors,
             std::shared_ptr<void> keepAlive, std::vector<c10::Stream> streams);
  ~StagedWork() override;

  // Whether a stream waits for this work.
  bool isAwaited() const;
  bool isDone() const override { return done_.load(std::memory_order_acquire); }
  Status wait(Deadline deadline) override;
  Status status() const override { return isDone() ? status_ : Status::ok(); }
  void onDone(std::function<void(const Status&)> callback) override;
  Rank sourceRank() const override { return transport_ != nullptr ? transport_->sourceRank() : -1; }
  Status waitOnStreams() override;
  std::vector<c10::Device> devices() const override;
  std::vector<c10::Stream> streams() const override { return streams_; }

  // For the stager.
  StagedTensors& tensors() { return *tensors_; }
  const WorkPtr& transport() const { return transport_; }
  // Called once: opens the gates, wakes waiting threads, and returns the callbacks to run.
  std::vector<std::function<void(const Status&)>> complete(Status status);
  // The devices are done with the memory.
  void release();

 private:
  Status waitHere(Deadline deadline);
  // False: `until` was reached first.
  bool waitSlice(Deadline until);

  const std::shared_ptr<StagedTensors> tensors_;
  const WorkPtr transport_;
  const bool hasHostTensors_;
  const std::vector<c10::Stream> streams_;
  const OwnerProcess owner_;

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::shared_ptr<void> keepAlive_ SW_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StreamGate>> gates_ SW_GUARDED_BY(mutex_);  // closed ones
  std::vector<std::function<void(const Status&)>> callbacks_ SW_GUARDED_BY(mutex_);
  Status status_;                   // written once, before done_
  std::atomic<bool> done_ = false;  // release pairs with isDone's acquire: status_ is there
};

}  // namespace shardwire::internal
