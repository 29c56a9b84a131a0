// A thread (wait) and a stream (waitOnStreams) can wait for such an operation. A thread first drives the transport,
// then sleeps until the stager completes the work. A stream gets a closed gate, which the stager opens when the last
// byte is on the device. A gate opens in any case, with an error or in the destructor: a stream must not stay blocked.
#include "backend/c10d/staged_work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include "backend/base/interruptible_wait.h"
#include "backend/base/user_call.h"
#include "backend/c10d/staged_tensors.h"

namespace shardwire::internal {

namespace {

// The last copy of a short operation takes less; a sleeping thread wakes up later.
constexpr std::chrono::microseconds kPolledFor(30);

}  // namespace

StagedWork::StagedWork(std::shared_ptr<StagedTensors> tensors, WorkPtr transport, bool hasHostTensors,
                       std::shared_ptr<void> keepAlive, std::vector<c10::Stream> streams)
    : tensors_(std::move(tensors)),
      transport_(std::move(transport)),
      hasHostTensors_(hasHostTensors),
      streams_(std::move(streams)),
      keepAlive_(std::move(keepAlive)) {}

// Opens the gates, so that no stream waits for ever, whatever became of the operation.
StagedWork::~StagedWork() {
  for (const auto& gate : gates_) {
    gate->open();
  }
}

std::vector<c10::Device> StagedWork::devices() const {
  return tensors_->devices();
}

bool StagedWork::isAwaited() const {
  const MutexLock lock(mutex_);
  return !gates_.empty();
}

Status StagedWork::wait(Deadline deadline) {
  if (!isDone() && transport_ != nullptr) {
    Status status = transport_->wait(deadline);  // drives the transport
    if (endedEarly(status, *transport_)) {
      return status;
    }
  }
  return waitHere(deadline);
}

Status StagedWork::waitHere(Deadline deadline) {
  constexpr const char* kWhat = "the operation that is in flight between the host and a device";
  for (const Clock::time_point until = Clock::now() + kPolledFor; !isDone() && Clock::now() < until;) {
    std::this_thread::yield();
  }
  InterruptibleWait slices(deadline);
  while (!waitSlice(slices.sliceEnd())) {
    SW_RETURN_IF_ERROR(owner_.check(kWhat));
    if (slices.isInterrupted()) {
      return interruptedStatus(kWhat);
    }
    if (Clock::now() >= deadline) {
      return {StatusCode::kTimeout,
              "the operation is still in flight between the host and a device: the wait ended first, the operation "
              "goes on"};
    }
  }
  return status_;
}

bool StagedWork::waitSlice(Deadline until) {
  const MutexLock lock(mutex_);
  // In a child of fork() no thread completes the work.
  while (!isDone() && owner_.isHere() && Clock::now() < until) {
    changed_.waitUntil(mutex_, until);
  }
  return isDone();
}

void StagedWork::onDone(std::function<void(const Status&)> callback) {
  {
    const MutexLock lock(mutex_);
    if (!isDone()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callUser("a callback of an operation", [&] { callback(status_); });
}

Status StagedWork::waitOnStreams() {
  if (isDone()) {
    return status_;  // the devices are done, and this thread has seen it: no work queued later can run too early
  }
  if (hasHostTensors_ && transport_ != nullptr) {
    SW_RETURN_IF_ERROR(transport_->wait(kNoDeadline));
  }
  for (const c10::Device& device : tensors_->devices()) {
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    const c10::StreamGuard current(stream);  // sets the stream's device as well
    std::unique_ptr<StreamGate> gate = makeStreamGate(stream);
    if (gate == nullptr) {
      return wait(kNoDeadline);
    }
    const MutexLock lock(mutex_);
    if (isDone()) {
      gate->open();
    } else {
      gates_.push_back(std::move(gate));
    }
  }
  return status();
}

std::vector<std::function<void(const Status&)>> StagedWork::complete(Status status) {
  const MutexLock lock(mutex_);
  status_ = std::move(status);
  done_.store(true, std::memory_order_release);
  for (const auto& gate : gates_) {
    gate->open();
  }
  gates_.clear();
  changed_.notifyAll();
  return std::move(callbacks_);
}

void StagedWork::release() {
  std::shared_ptr<void> keepAlive;
  {
    const MutexLock lock(mutex_);
    keepAlive.swap(keepAlive_);
  }
  if (transport_ != nullptr) {
    tensors_->release();
  }
}

}  // namespace shardwire::internal
