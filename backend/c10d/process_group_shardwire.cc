// Life of the group, point to point, barriers, compileOp. The collectives on tensors are in collectives.cc and
// reductions.cc. Every call takes a reference to the communicator under the lock and works without the lock. shutdown()
// takes the communicator away and ends it, also while a call of another thread still has a reference.
#include "backend/c10d/process_group_shardwire.h"

#include <stdlib.h>

#include <numeric>
#include <string_view>

#include "backend/base/interruptible_wait.h"
#include "backend/c10d/heap_allocator.h"
#include "backend/c10d/issue.h"
#include "backend/c10d/live_groups.h"
#include "backend/c10d/observer.h"
#include "backend/c10d/reconfigurable.h"
#include "backend/c10d/store_adapter.h"
#include "backend/c10d/torch_storage_watch.h"
#include "backend/c10d/window.h"
#include "backend/c10d/without_python.h"
#include "backend/exec/op_recorder.h"
#include "backend/plans/op_facts.h"

namespace shardwire {

::shardwire::Options ProcessGroupShardwire::optionsFor(Milliseconds timeout) {
  ::shardwire::Options options = valueOrThrow(::shardwire::Options::fromEnvironment());
  if (timeout.count() > 0) {
    options.timeout = timeout;
  }
  options.storages = &internal::torchStorageWatch();
  if (options.recordedOps < 0) {
    options.recordedOps = internal::kRecordedOps;  // cheap compared with torch's work in a call
  }
  return options;
}

std::shared_ptr<Communicator> ProcessGroupShardwire::connect(const StorePtr& store, int rank, int size,
                                                             const ::shardwire::Options& options,
                                                             const std::string& groupName) {
  internal::C10dStore adapted(store, options.timeout);
  // Dropping the last reference ends the group, and waits for threads that may be in a Python callback. The owner of
  // the last reference, a Python binding or torch with Python's lock held, must not keep the lock meanwhile.
  return {valueOrThrow(Communicator::create(adapted, rank, size, options, groupName)).release(),
          [](Communicator* ended) {
            const internal::WithoutPython released;
            delete ended;
          }};
}

c10::intrusive_ptr<ProcessGroupShardwire> ProcessGroupShardwire::create(const StorePtr& store, int rank, int size,
                                                                        Milliseconds timeout,
                                                                        const std::string& groupName, bool isOfOneJob,
                                                                        std::function<Status(Rank)> statusOfAbsent,
                                                                        bool outlivesOthers, bool isBetweenJobs) {
  ::shardwire::Options options = optionsFor(timeout);
  if (outlivesOthers) {
    options.grace = Duration(-1);
  }
  if (isBetweenJobs) {
    options.recordFile.clear();
  }
  options.statusOfAbsent = std::move(statusOfAbsent);
  // The agent of torchrun keeps the store over restarts; processes started by hand have no such variable.
  options.storeIsKept = isOfOneJob && ::getenv("TORCHELASTIC_RUN_ID") != nullptr;
  auto group = c10::make_intrusive<ProcessGroupShardwire>(connect(store, rank, size, options, groupName), rank, size,
                                                          options.stagingBytes);
  group->isOfOneJob_ = isOfOneJob;
  internal::addLiveGroup(group);
  return group;
}

std::function<Status(Rank)> ProcessGroupShardwire::statusOfMembers(std::vector<std::int64_t> ranks) const {
  return [known = std::weak_ptr(communicatorOrNull()), ranks = std::move(ranks)](Rank member) {
    const auto communicator = known.lock();
    return communicator == nullptr
               ? Status::ok()
               : communicator->peerStatus(static_cast<Rank>(ranks[static_cast<std::size_t>(member)]));
  };
}

ProcessGroupShardwire::ProcessGroupShardwire(std::shared_ptr<Communicator> communicator, int rank, int size,
                                             std::size_t stagingBytes)
    : TorchBackend(rank, size),
      observer_(std::make_shared<internal::Observer>()),
      present_(std::make_shared<Present>()),
      stager_(internal::DeviceStager::create(
          stagingBytes, [present = present_](const std::string& reason) { present->abort(reason); })),
      communicator_(std::move(communicator)),
      globalRanks_(sizeAsCount()) {
  present_->set(communicator_);
  std::iota(globalRanks_.begin(), globalRanks_.end(), 0);
}

// Only for a group without a communicator.
Status ProcessGroupShardwire::whyNone() const {
  return reconfigurable_ == nullptr || reconfigurable_->isShutDown
             ? Status{StatusCode::kAborted, "this process group was shut down; make a new one"}
             : Status{StatusCode::kAborted,
                      "this process group, made with enable_reconfigure=True, has no members: call reconfigure(), with "
                      "a new uuid, on all ranks that are to be members"};
}

ProcessGroupShardwire::~ProcessGroupShardwire() {
  if (stager_ != nullptr) {
    release_resources();
  }
}

void ProcessGroupShardwire::release_resources() {
  const internal::NoInterrupts whole;  // this function could not report an interruption
  static_cast<void>(end());
  // At the end of the process this early release would need Python or a device's driver, which may be gone.
  if (!owner_.isHere() || !internal::isPythonAlive()) {
    return;
  }
  const internal::WithoutPython released;  // a driver may take long to free pinned memory
#if SW_TORCH_HAS_WORK_INFO
  onCompletionHook_ = nullptr;
#endif
  observer_.reset();
  reconfigurable_.reset();
  stager_.reset();
}

std::shared_ptr<Communicator> ProcessGroupShardwire::communicator() const {
  if (!owner_.isHere()) {
    throwUnlessOk(owner_.check("this process group"));
  }
  const internal::MutexLock lock(mutex_);
  if (communicator_ == nullptr) {
    throw StatusError(whyNone());
  }
  return communicator_;
}

std::shared_ptr<Communicator> ProcessGroupShardwire::communicatorOrNull() const {
  const internal::MutexLock lock(mutex_);
  return communicator_;
}

std::vector<std::int64_t> ProcessGroupShardwire::globalRanks() const {
  throwUnlessOk(owner_.check("this process group"));
  const internal::MutexLock lock(mutex_);
  return globalRanks_;
}

void ProcessGroupShardwire::setGlobalRanks(std::vector<std::int64_t> ranks) {
  if (ranks.size() != sizeAsCount()) {
    internal::refuseCall(StatusCode::kInvalidArgument, "{} global ranks were given for a group of {} ranks",
                         ranks.size(), getSize());
  }
  communicator()->setGlobalRanks(ranks);
  const internal::MutexLock lock(mutex_);
  globalRanks_ = std::move(ranks);
}

std::unique_ptr<internal::TensorOpShardwire> ProcessGroupShardwire::compileOp(const LocalSpec& spec,
                                                                              std::optional<Duration> timeout) {
  std::shared_ptr<Communicator> communicator = this->communicator();
  const std::shared_ptr<internal::ProfilerRange> range =
      internal::ProfilerRange::open("shardwire", "compile_op", {}, spec.name);
  std::shared_ptr<CompiledOp> op = valueOrThrow(communicator->compileOp(spec, timeout));
  if (range != nullptr) {
    range->end();
  }
  return std::make_unique<internal::TensorOpShardwire>(std::move(op), getRank(), stager_, spec.name);
}

std::unique_ptr<internal::TensorOpShardwire> ProcessGroupShardwire::attach(const CompiledOp& planned,
                                                                           std::optional<Duration> timeout) {
  std::shared_ptr<Communicator> communicator = this->communicator();
  std::shared_ptr<CompiledOp> op = valueOrThrow(communicator->attach(planned, timeout));
  const internal::OpFacts* facts = internal::offlineFactsOf(planned);
  return std::make_unique<internal::TensorOpShardwire>(std::move(op), getRank(), stager_,
                                                       facts != nullptr ? facts->agreed().name : "");
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::send(Tensors& tensors, int peer, int tag) {
  const Call call{OpType::SEND, "send", "send"};
  const at::Tensor& tensor = onlyTensor(tensors, call.name);
  internal::HostTensors host(stager_);
  const TensorView view = viewOf(host.in(tensor, "send: tensor"), "send: tensor");
  // The tensor is passed as an input: the future of a send has no value to show.
  return start(call, {{}, {tensor}}, host, ::c10d::kUnsetTimeout, calling(&Communicator::send, view, peer, tag));
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::recvAnysource(Tensors& tensors, int tag) {
  return receive(tensors, kAnySource, tag);
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::receive(Tensors& tensors, int peer, int tag) {
  const Call call =
      peer == kAnySource ? Call{OpType::RECVANYSOURCE, "recv", "recvAnySource"} : Call{OpType::RECV, "recv", "recv"};
  const at::Tensor& tensor = onlyTensor(tensors, call.name);
  internal::HostTensors host(stager_);
  const TensorView view = viewOf(host.out(tensor, "recv: tensor"), "recv: tensor");
  return start(call, {{tensor}, {}}, host, ::c10d::kUnsetTimeout, calling(&Communicator::recv, view, peer, tag));
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::barrier(const ::c10d::BarrierOptions& options) {
  const Call call{OpType::BARRIER, "barrier", "barrier"};
  internal::HostTensors none(stager_);
  return start(call, {}, none, options.timeout, calling(&Communicator::barrier));
}

void ProcessGroupShardwire::startCoalescing() {
  if constexpr (internal::kTorchCoalesces) {
    // Released after the lock: the last owner of a tensor may run the user's code.
    std::vector<WorkPtr> works;
    OperationTensors tensors;
    const internal::MutexLock lock(mutex_);
    works = std::exchange(coalesced_, {});
    tensors = std::exchange(coalescedTensors_, {});
    coalescing_.store(true, std::memory_order_relaxed);
  }
}

ProcessGroupShardwire::TorchWork ProcessGroupShardwire::endCoalescing() {
  std::vector<WorkPtr> works;
  auto tensors = std::make_shared<OperationTensors>();
  std::uint64_t sequence = 0;
  {
    const internal::MutexLock lock(mutex_);
    coalescing_.store(false, std::memory_order_relaxed);
    works = std::exchange(coalesced_, {});
    *tensors = std::exchange(coalescedTensors_, {});
    sequence = communicator_ == nullptr ? 0 : communicator_->sequenceNumber();
  }
  // Without the lock, since a hook of the user may run here. The coalesced operations have ranges of their own in the
  // profiler, which end with the operations.
  return internal::WorkShardwire::create(internal::bundleWorks(std::move(works)), std::move(tensors),
                                         {getRank(), OpType::UNKNOWN, sequence, nullptr, Clock::now()},
                                         observer_->isActive() ? observer_ : nullptr);
}

void ProcessGroupShardwire::enableCollectivesTiming() {
  observer_->enableTiming();
}

#if SW_TORCH_HAS_WORK_INFO
void ProcessGroupShardwire::registerOnCompletionHook(std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) {
  if (onCompletionHook_ != nullptr) {
    internal::refuseCall(StatusCode::kInvalidArgument, "this group has a completion hook already");
  }
  onCompletionHook_ = std::move(hook);  // the base class checks this member for a hook
  observer_->setHook([hook = onCompletionHook_](const internal::FinishedOperation& operation) {
    using Time = decltype(::c10d::WorkInfo::timeStarted);
    // Versions of torch differ in the clock of WorkInfo.
    const auto torchTime = [](Clock::time_point time) {
      return Time::clock::now() + std::chrono::duration_cast<Time::duration>(time - Clock::now());
    };
    hook(std::make_shared<::c10d::WorkInfo>(operation.type, operation.sequence, torchTime(operation.started),
                                            torchTime(operation.ended), operation.ended - operation.started));
  });
}
#endif

void ProcessGroupShardwire::waitForPendingWorks() {
  if (!observer_->isActive()) {
    internal::refuseCall(StatusCode::kInvalidArgument,
                         "no completion hook was registered: this group does not know what is pending");
  }
  throwUnlessOk(observer_->waitForAll(communicator()->timeout()));
}

#if SW_TORCH_HAS_ERROR_TYPE
::c10d::ErrorType ProcessGroupShardwire::getError() {
  throwUnlessOk(owner_.check("this process group"));
  const std::shared_ptr<Communicator> communicator = communicatorOrNull();
  // A normal shutdown is no error.
  switch (communicator == nullptr ? StatusCode::kOk : communicator->status().code()) {
    case StatusCode::kOk:
      return ::c10d::ErrorType::SUCCESS;
    case StatusCode::kTimeout:
      return ::c10d::ErrorType::TIMEOUT;
    case StatusCode::kPeerFailed:
    case StatusCode::kMismatch:
      return ::c10d::ErrorType::REMOTE_ERROR;
    case StatusCode::kAborted:  // an abort is an error to NCCL, and no error to gloo
      return std::string_view(profiledAs_) == "gloo" ? ::c10d::ErrorType::SUCCESS : ::c10d::ErrorType::COMM_ERROR;
    default:
      return ::c10d::ErrorType::COMM_ERROR;
  }
}
#endif

std::shared_ptr<c10::Allocator> ProcessGroupShardwire::getMemAllocator() {
  return {&internal::heapAllocator(), [](c10::Allocator*) {}};  // never destroyed
}

at::Tensor ProcessGroupShardwire::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu()) {
    internal::refuseCall(StatusCode::kUnsupported, "allocate_tensor: device {}; shardwire's memory is the CPU's",
                         options.device().str());
  }
  return internal::heapEmpty({size}, c10::typeMetaToScalarType(options.dtype()));
}

#if SW_TORCH_HAS_WINDOW
c10::intrusive_ptr<::c10d::Window> ProcessGroupShardwire::new_window(const std::optional<at::Tensor>& tensor) {
  auto window = internal::WindowShardwire::create(communicator(), globalRanks());
  if (tensor.has_value()) {
    window->tensor_register(*tensor, true);
  }
  return window;
}
#endif

void ProcessGroupShardwire::setTimeout(Milliseconds timeout) {
  if (reconfigurable_ == nullptr) {
    return communicator()->setTimeout(timeout);
  }
  const internal::MutexLock lock(mutex_);
  reconfigurable_->timeout = timeout;
  if (communicator_ != nullptr) {
    communicator_->setTimeout(timeout);
  }
}

void ProcessGroupShardwire::waitInside(::c10d::Work& work, const char* name) {
  Status status = static_cast<internal::WorkShardwire&>(work).waitUntil(kNoDeadline);
  if (status.code() == StatusCode::kInterrupted) {
    communicator()->abort(std::string(name) + " was interrupted by a signal (Ctrl-C?)");
  }
  throwUnlessOk(std::move(status));
}

void ProcessGroupShardwire::abort() {
  if (!owner_.isHere()) {
    return;
  }
  const std::shared_ptr<Communicator> communicator = communicatorOrNull();
  if (communicator != nullptr) {
    communicator->abort("abort() was called on this rank's process group");
  }
}

// The queues of the group look for the notice now and then, and perhaps not before the group's end.
std::string ProcessGroupShardwire::revocation() const {
  {
    const internal::MutexLock lock(mutex_);
    if (communicator_ == nullptr && !lastNotice_.empty()) {
      return lastNotice_;
    }
  }
  return communicator()->revocation();
}

void ProcessGroupShardwire::shutdown() {
  throwUnlessOk(end());
}

Status ProcessGroupShardwire::end() {
  if (!owner_.isHere()) {
    return Status::ok();  // the communicator and the stager detect themselves that the parent owns them
  }
  if (reconfigurable_ != nullptr) {
    const internal::MutexLock lock(mutex_);
    reconfigurable_->isShutDown = true;
  }
  const internal::WithoutPython released;  // end() waits for devices and joins the stager's thread
  Status waited = endCommunicator();
  stager_->stop();
  return waited;
}

// Ends here and now, even if other threads are inside a call. Threads that wait in the group are woken, and a thread
// that only reads from the group is no reason to fail the other ranks.
Status ProcessGroupShardwire::endCommunicator() {
  std::shared_ptr<Communicator> communicator = communicatorOrNull();
  if (communicator == nullptr) {
    return Status::ok();
  }
  std::string notice = communicator->revocation();
  {
    const internal::MutexLock lock(mutex_);
    communicator = std::exchange(communicator_, nullptr);
    if (communicator == nullptr) {
      return Status::ok();
    }
    lastNotice_ = std::move(notice);
  }
  Status waited = stager_->finishAwaited(deadlineAfter(communicator->timeout()));
  communicator->end();
  return waited;
}

}  // namespace shardwire
