// A shardwire::Work as a c10d::Work, with a future of the output tensors. Also bundles several works into one. All
// methods from any thread.
#pragma once

#include <memory>
// Before ATen.h, which Work.hpp includes: clang in C++20 wants IValue complete there.
#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/c10d/observer.h"
#include "backend/c10d/profiler_range.h"
#include "backend/c10d/staged_work.h"
#include "backend/c10d/tensor_adapter.h"
#include "backend/c10d/torch_compat.h"
#include "shardwire/export.h"
#include "shardwire/work.h"

namespace shardwire::internal {

SW_TORCH_VIRTUALS_BEGIN
class SHARDWIRE_EXPORT WorkShardwire final : public ::c10d::Work {
 public:
  // The properties of an operation that torch shows. `range`: null without an active profiler.
  struct Origin {
    int rank;
    ::c10d::OpType type;
    std::uint64_t sequence;
    std::shared_ptr<ProfilerRange> range = nullptr;
    Clock::time_point began = {};  // the time of the call; for an observer
  };
  // `observer`: null where nobody observes the operation.
  static c10::intrusive_ptr<WorkShardwire> create(WorkPtr work, std::shared_ptr<const OperationTensors> tensors,
                                                  Origin origin, std::shared_ptr<Observer> observer = nullptr);
  // Use create().
  WorkShardwire(WorkPtr work, std::shared_ptr<const OperationTensors> tensors, Origin origin,
                std::shared_ptr<Observer> observer);

  bool isCompleted() override { return work_->isDone(); }
  bool isSuccess() const override { return work_->status().isOk(); }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return work_->sourceRank(); }
  std::vector<at::Tensor> result() override { return {tensors_->outputs.begin(), tensors_->outputs.end()}; }
  // CPU tensors: nothing, done means done. Device tensors: as wait() without a timeout.
  void synchronize() override;
  // Throws the operation's StatusError, or one of kTimeout while the operation goes on. kNoTimeout: the CPU waits for
  // CPU tensors, the current streams for devices' tensors (DeviceWork::waitOnStreams). Anything else: the CPU waits;
  // negative: without a deadline.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // Value: List[Tensor], the outputs.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // Value: c10d's WorkResult; never an error. Throws where torch has no such thing.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult();
  std::uint64_t getSequencenumber() const { return sequence_; }
  // Milliseconds from the call to the end. Throws until then, and when the group was not asked to time its operations.
  float getDuration() const;
  // As wait() without a timeout: there are no streams of CPU tensors.
  void blockCurrentStream() { wait(kNoTimeout); }
  bool hasDeviceTensors() const { return device_ != nullptr; }

  Status waitUntil(Deadline deadline) { return work_->wait(deadline); }
  Status status() const { return work_->status(); }

 private:
  void observe();

  WorkPtr work_;
  DeviceWork* device_;  // work_, when some of its tensors lie on devices
  std::shared_ptr<const OperationTensors> tensors_;
  std::uint64_t sequence_;
  std::shared_ptr<Observer> observer_;
  std::shared_ptr<ProfilerRange> range_;  // mostly null
  Clock::time_point started_;
  std::atomic<std::int64_t> durationNs_ = -1;       // relaxed: a value alone. Negative: not timed, or not over
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_ of the base; made when first asked for
};
SW_TORCH_VIRTUALS_END

// Done when all are done; fails with the first failure in order.
WorkPtr bundleWorks(std::vector<WorkPtr> works);

}  // namespace shardwire::internal
