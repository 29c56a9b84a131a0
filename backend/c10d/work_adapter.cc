// Torch sees one class, WorkShardwire, which forwards to our Work: an operation in flight, an operation with device
// tensors (DeviceWork), or a bundle of several. wait() without a timeout has torch's meaning: the CPU waits for CPU
// tensors, and the current streams wait for device tensors. Futures are made only on request; the thread that ends the
// operation completes them.
#include "backend/c10d/work_adapter.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>

#include "backend/base/user_call.h"
#include "backend/c10d/throw_status.h"
#include "backend/c10d/without_python.h"

namespace shardwire::internal {
namespace {

using c10::ivalue::Future;

c10::List<at::Tensor> listOf(const OperationTensors& tensors) {
  c10::List<at::Tensor> list;
  list.reserve(tensors.outputs.size());
  for (const at::Tensor& tensor : tensors.outputs) {
    list.push_back(tensor);
  }
  return list;
}

DeviceWork* deviceWorkOf(Work& work) {
  auto* device = dynamic_cast<DeviceWork*>(&work);
  return device != nullptr && !device->devices().empty() ? device : nullptr;
}

class WorkBundle final : public DeviceWork {
 public:
  explicit WorkBundle(std::vector<WorkPtr> works) : works_(std::move(works)) {}

  Status waitOnStreams() override {
    Status first;
    for (const WorkPtr& work : works_) {
      DeviceWork* device = deviceWorkOf(*work);
      Status status = device != nullptr ? device->waitOnStreams() : work->wait(kNoDeadline);
      if (status.code() == StatusCode::kInterrupted) {
        return status;
      }
      if (first.isOk()) {
        first = work->status();
      }
    }
    return first;
  }
  std::vector<c10::Device> devices() const override {
    return collect<c10::Device>([](const DeviceWork& work) { return work.devices(); });
  }
  std::vector<c10::Stream> streams() const override {
    return collect<c10::Stream>([](const DeviceWork& work) { return work.streams(); });
  }

  bool isDone() const override {
    return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isDone(); });
  }
  Status wait(Deadline deadline) override {
    Status first;
    for (const WorkPtr& work : works_) {
      const Status status = work->wait(deadline);
      if (endedEarly(status, *work)) {
        return status;  // the other works may be pending too
      }
      if (first.isOk()) {
        first = std::move(status);
      }
    }
    return first;
  }
  Status status() const override {
    for (const WorkPtr& work : works_) {
      SW_RETURN_IF_ERROR(work->status());
    }
    return Status::ok();
  }
  void onDone(std::function<void(const Status&)> callback) override {
    if (works_.empty()) {
      callUser("a callback of an operation", [&] { callback(Status::ok()); });
      return;
    }
    struct Join {
      Join(const std::vector<WorkPtr>& all, std::function<void(const Status&)> then)
          : left(all.size()), works(all), callback(std::move(then)) {}
      std::atomic<std::size_t> left;  // acq_rel: the last thread sees the statuses of the other threads
      std::vector<WorkPtr> works;
      std::function<void(const Status&)> callback;
    };
    auto join = std::make_shared<Join>(works_, std::move(callback));
    for (const WorkPtr& work : works_) {
      work->onDone([join](const Status&) {
        if (join->left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
          const std::vector<WorkPtr> works = std::move(join->works);
          join->callback(WorkBundle(works).status());
        }
      });
    }
  }

 private:
  template <typename T, typename Part>
  std::vector<T> collect(Part&& part) const {
    std::vector<T> all;
    for (const WorkPtr& work : works_) {
      if (const DeviceWork* device = deviceWorkOf(*work); device != nullptr) {
        for (const T& one : part(*device)) {
          if (std::find(all.begin(), all.end(), one) == all.end()) {
            all.push_back(one);
          }
        }
      }
    }
    return all;
  }

  std::vector<WorkPtr> works_;
};

// The devices of a future's value; c10 needs the devices when the future is made.
std::vector<c10::Device> devicesOf(const OperationTensors& tensors) {
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors.outputs) {
    if (tensor.device().is_cpu() || std::find(devices.begin(), devices.end(), tensor.device()) != devices.end()) {
      continue;
    }
    if (!devices.empty() && devices.front().type() != tensor.device().type()) {
      throw StatusError(
          Status(StatusCode::kUnsupported, "a c10 future cannot hold tensors of several kinds of devices: use wait()"));
    }
    devices.push_back(tensor.device());
  }
  return devices;
}

// For each device a stream without other work: the future records its events there.
std::vector<c10::Stream> streamsFor(const std::vector<c10::Device>& devices, const DeviceWork* work) {
  std::vector<c10::Stream> streams;
  if (work != nullptr) {
    for (const c10::Device& device : devices) {
      const auto all = work->streams();
      const auto found =
          std::find_if(all.begin(), all.end(), [&](const c10::Stream& stream) { return stream.device() == device; });
      if (found != all.end()) {
        streams.push_back(*found);
      }
    }
  }
  return streams;
}

void complete(Future& future, const OperationTensors& tensors, const Status& status) {
  if (status.isOk()) {
    future.markCompleted(c10::IValue(listOf(tensors)));
  } else {
    future.setError(std::make_exception_ptr(StatusError(status)));
  }
}

}  // namespace

WorkPtr bundleWorks(std::vector<WorkPtr> works) {
  return works.size() == 1 ? std::move(works.front()) : std::make_shared<WorkBundle>(std::move(works));
}

c10::intrusive_ptr<WorkShardwire> WorkShardwire::create(WorkPtr work, std::shared_ptr<const OperationTensors> tensors,
                                                        Origin origin, std::shared_ptr<Observer> observer) {
  auto self =
      c10::make_intrusive<WorkShardwire>(std::move(work), std::move(tensors), std::move(origin), std::move(observer));
  if (self->range_ != nullptr) {
    self->work_->onDone([range = self->range_](const Status&) { range->end(); });
  }
  if (self->observer_ != nullptr) {
    self->observe();
  }
  return self;
}

// The base class gets no title. With a title it would open its range now, although the operation is issued already and
// may be over.
WorkShardwire::WorkShardwire(WorkPtr work, std::shared_ptr<const OperationTensors> tensors, Origin origin,
                             std::shared_ptr<Observer> observer)
    : ::c10d::Work(origin.rank, origin.type),
      work_(std::move(work)),
      device_(deviceWorkOf(*work_)),
      tensors_(std::move(tensors)),
      sequence_(origin.sequence),
      observer_(std::move(observer)),
      range_(std::move(origin.range)),
      started_(origin.began) {}

void WorkShardwire::observe() {
  observer_->began();
  const auto self = c10::intrusive_ptr<WorkShardwire>::reclaim_copy(this);
  work_->onDone([self](const Status&) {
    const Clock::time_point ended = Clock::now();
    if (self->observer_->isTiming()) {
      self->durationNs_.store((ended - self->started_).count(), std::memory_order_relaxed);
    }
    self->observer_->ended({self->opType_, self->sequence_, self->started_, ended});
  });
}

std::exception_ptr WorkShardwire::exception() const {
  const Status status = work_->status();
  return status.isOk() ? nullptr : std::make_exception_ptr(StatusError(status));
}

void WorkShardwire::synchronize() {
  if (device_ != nullptr) {
    const WithoutPython released;  // torch's binding of synchronize() keeps Python's lock
    wait(kNoTimeout);
  }
}

bool WorkShardwire::wait(std::chrono::milliseconds timeout) {
  const bool onStreams = device_ != nullptr && timeout == kNoTimeout;
  Status status =
      onStreams ? device_->waitOnStreams() : work_->wait(timeout == kNoTimeout ? kNoDeadline : deadlineAfter(timeout));
  throwUnlessOk(std::move(status));
  if (range_ != nullptr) {
    range_->end();  // before the caller goes on and may end the profile; the thread that ended the work may be late
  }
  return true;
}

c10::intrusive_ptr<Future> WorkShardwire::getFuture() {
  std::vector<c10::Device> devices;
  {
    const std::lock_guard lock(mutex_);
    if (future_) {
      return future_;
    }
    devices = devicesOf(*tensors_);
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()), devices);
  }
  const std::vector<c10::Stream> streams = streamsFor(devices, device_);
  // Outside of the lock: the callback runs at once if the work is done, and user code may be attached to the future
  // later.
  work_->onDone([future = future_, tensors = tensors_, streams](const Status& status) {
    const c10::MultiStreamGuard current{c10::ArrayRef<c10::Stream>(streams)};
    complete(*future, *tensors, status);
  });
  return future_;
}

c10::intrusive_ptr<Future> WorkShardwire::getFutureResult() {
#if SW_TORCH_HAS_WORK_RESULT
  auto future = c10::make_intrusive<Future>(c10::AnyEnumType::get());
  work_->onDone([future](const Status& status) {
    using ::c10d::WorkResult;
    const WorkResult result = status.isOk()                           ? WorkResult::SUCCESS
                              : status.code() == StatusCode::kTimeout ? WorkResult::TIMEOUT
                                                                      : WorkResult::COMM_ERROR;
    future->markCompleted(c10::IValue(static_cast<std::int64_t>(result)));
  });
  return future;
#else
  throw StatusError(Status(StatusCode::kUnsupported, "this version of torch has no WorkResult"));
#endif
}

float WorkShardwire::getDuration() const {
  const std::int64_t nanoseconds = durationNs_.load(std::memory_order_relaxed);
  if (nanoseconds < 0) {
    throw StatusError(
        Status(StatusCode::kInvalidArgument,
               "the operation has no duration: it is not over, or began before the group's timing was enabled"));
  }
  return static_cast<float>(nanoseconds) * 1e-6F;
}

}  // namespace shardwire::internal
