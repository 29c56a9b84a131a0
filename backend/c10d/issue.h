// How ProcessGroupShardwire starts an operation: shared by its source files, included by nothing else.
#pragma once

#include <algorithm>

#include "backend/c10d/host_tensors.h"
#include "backend/c10d/observer.h"
#include "backend/c10d/process_group_shardwire.h"

namespace shardwire {

// An operation's names: c10d's type, the name in error messages, and the profiler's title, which follows the backend's
// name.
struct ProcessGroupShardwire::Call {
  ::c10d::OpType type;
  const char* name;
  const char* title;
  bool writes = true;            // the operation changes `outputs` on this rank: false for a broadcast at its root
  Clock::time_point began = {};  // set where the call waits before start()
};

// `issue` gets the communicator and the call's options, and returns Result<WorkPtr>. The views inside `issue` are views
// of the tensors that `host` returned.
template <typename Issue>
ProcessGroupShardwire::TorchWork ProcessGroupShardwire::start(Call call, internal::OperationTensors tensors,
                                                              internal::HostTensors& host, Milliseconds timeout,
                                                              Issue&& issue) {
  const std::shared_ptr<Communicator> communicator = this->communicator();
  const bool isObserved = observer_->isActive();
  const Clock::time_point began = isObserved && call.began == Clock::time_point() ? Clock::now() : call.began;
  auto kept = std::make_shared<internal::OperationTensors>(std::move(tensors));
  std::shared_ptr<internal::ProfilerRange> range = internal::ProfilerRange::open(profiledAs_, call.title, *kept);
  CallOptions options;
  options.keepAlive = kept;
  if (host.staged() != nullptr) {
    options.keepAlive = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(kept, host.staged());
    options.staging = host.staged().get();
  }
  if (timeout.count() >= 0) {  // negative: kUnsetTimeout, so the group's timeout applies
    options.timeout = std::max(timeout, Milliseconds(1));
  }
  Result<WorkPtr> issued = issue(*communicator, std::move(options));
  WorkPtr work = host.begin(issued.isOk() ? std::move(issued).value() : nullptr, kept);
  internal::throwUnlessOk(issued.status());
  if (call.writes) {
    internal::bumpVersions(kept->outputs);
  }
  if (coalescing_.load(std::memory_order_relaxed)) {
    const internal::MutexLock lock(mutex_);
    coalesced_.push_back(work);
    coalescedTensors_.outputs.append(kept->outputs.begin(), kept->outputs.end());
  }
  return internal::WorkShardwire::create(
      std::move(work), std::move(kept), {getRank(), call.type, communicator->sequenceNumber(), std::move(range), began},
      isObserved ? observer_ : nullptr);
}

namespace internal {

// c10d's lists date from several GPUs per process; today each list holds one tensor.
inline at::Tensor& onlyTensor(std::vector<at::Tensor>& tensors, const char* name) {
  if (tensors.size() != 1) {
    refuseCall(StatusCode::kInvalidArgument, "{}: one tensor per rank is needed, {} were given", name, tensors.size());
  }
  return tensors.front();
}

inline std::vector<at::Tensor>& onlyList(std::vector<std::vector<at::Tensor>>& lists, std::size_t size,
                                         const char* name, const char* which) {
  if (lists.size() != 1 || lists.front().size() != size) {
    refuseCall(StatusCode::kInvalidArgument,
               "{}: the {} list must hold one tensor for each of the {} ranks, but holds {}", name, which, size,
               lists.size() == 1 ? lists.front().size() : 0);
  }
  return lists.front();
}

// For start(): one call of the communicator with arguments that outlive start().
template <typename Method, typename... Arguments>
auto calling(Method method, const Arguments&... arguments) {
  return [method, &arguments...](Communicator& communicator, CallOptions options) {
    return (communicator.*method)(arguments..., std::move(options));
  };
}

// Starts `count` operations as one.
template <typename Issue>
Result<WorkPtr> issueEach(std::size_t count, Issue&& issue) {
  std::vector<WorkPtr> works;
  works.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    Result<WorkPtr> work = issue(i);
    SW_RETURN_IF_ERROR(work.status());
    works.push_back(std::move(work).value());
  }
  return bundleWorks(std::move(works));
}

// Whether a list with one tensor per rank holds several sizes.
inline bool areUneven(const std::vector<at::Tensor>& list) {
  return std::ranges::any_of(list, [&](const at::Tensor& tensor) { return tensor.numel() != list.front().numel(); });
}

inline void checkPairs(std::size_t outputs, std::size_t inputs, const char* name) {
  if (outputs != inputs) {
    refuseCall(StatusCode::kInvalidArgument, "{}: {} output tensors for {} input tensors", name, outputs, inputs);
  }
}

inline void checkOneDType(const std::vector<TensorView>& views, const char* name, const char* which) {
  for (std::size_t i = 1; i < views.size(); ++i) {
    if (views[i].dtype != views[0].dtype) {
      refuseCall(StatusCode::kTypeError, "{}: {}[0] is {} but {}[{}] is {}; one call takes tensors of one dtype", name,
                 which, dtypeName(views[0].dtype), which, i, dtypeName(views[i].dtype));
    }
  }
}

inline void checkSameDType(const TensorView& a, const TensorView& b, const char* name) {
  if (a.dtype != b.dtype) {
    refuseCall(StatusCode::kTypeError, "{}: input and output tensors must have one dtype, got {} and {}", name,
               dtypeName(a.dtype), dtypeName(b.dtype));
  }
}

}  // namespace internal

// The names that these source files use.
using ::c10d::OpType;
using internal::calling;
using internal::checkOneDType;
using internal::checkPairs;
using internal::checkSameDType;
using internal::equalPieces;
using internal::HostTensors;
using internal::onlyList;
using internal::onlyTensor;
using internal::OperationTensors;
using internal::refuseCall;
using internal::tensorsOf;
using internal::throwUnlessOk;
using internal::valueOrThrow;
using internal::viewAs;
using internal::viewOf;
using internal::viewsOf;
using TorchWork = ProcessGroupShardwire::TorchWork;

}  // namespace shardwire
