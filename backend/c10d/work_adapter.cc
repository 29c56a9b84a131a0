#include "backend/c10d/work_adapter.h"

#include <ATen/record_function.h>

#include <atomic>

#include "backend/c10d/status_error.h"

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

class WorkBundle final : public Work {
 public:
  explicit WorkBundle(std::vector<WorkPtr> works) : works_(std::move(works)) {}

  bool isDone() const override {
    return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->isDone(); });
  }
  Status wait(Deadline deadline) override {
    Status first;
    for (const WorkPtr& work : works_) {
      Status status = work->wait(deadline);
      if (!status.isOk() && !work->isDone()) {
        return status;  // the deadline; the rest may be pending too
      }
      if (first.isOk()) {
        first = std::move(status);
      }
    }
    return first;
  }
  Status status() const override {
    for (const WorkPtr& work : works_) {
      if (Status status = work->status(); !status.isOk()) {
        return status;
      }
    }
    return Status::ok();
  }
  void onDone(std::function<void(const Status&)> callback) override {
    if (works_.empty()) {
      callback(Status::ok());
      return;
    }
    struct Join {
      Join(const std::vector<WorkPtr>& all, std::function<void(const Status&)> then)
          : left(all.size()), works(all), callback(std::move(then)) {}
      std::atomic<std::size_t> left;  // acq_rel: the last one sees the statuses that the others set
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
  std::vector<WorkPtr> works_;
};

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

c10::intrusive_ptr<WorkShardwire> WorkShardwire::create(WorkPtr work, std::shared_ptr<const OperationTensors> tensors, int rank,
                                                        ::c10d::OpType type, std::uint64_t sequence, const char* title) {
  // A title makes the base open a profiler range, which costs even when nobody profiles.
  const bool profiling = at::hasCallbacks();
  auto self = c10::make_intrusive<WorkShardwire>(std::move(work), std::move(tensors), rank, type, sequence, profiling ? title : nullptr);
  if (profiling) {
    self->work_->onDone([self](const Status&) {
      if (self->recordFunctionEndCallback_) {
        self->recordFunctionEndCallback_();
        self->recordFunctionEndCallback_ = nullptr;
      }
    });
  }
  return self;
}

WorkShardwire::WorkShardwire(WorkPtr work, std::shared_ptr<const OperationTensors> tensors, int rank, ::c10d::OpType type,
                             std::uint64_t sequence, const char* title)
    : ::c10d::Work(rank, type, title, {}), work_(std::move(work)), tensors_(std::move(tensors)), sequence_(sequence) {}

WorkShardwire::~WorkShardwire() = default;

bool WorkShardwire::isCompleted() {
  return work_->isDone();
}

bool WorkShardwire::isSuccess() const {
  return work_->status().isOk();
}

std::exception_ptr WorkShardwire::exception() const {
  const Status status = work_->status();
  return status.isOk() ? nullptr : std::make_exception_ptr(StatusError(status));
}

int WorkShardwire::sourceRank() const {
  return work_->sourceRank();
}

std::vector<at::Tensor> WorkShardwire::result() {
  return {tensors_->outputs.begin(), tensors_->outputs.end()};
}

void WorkShardwire::synchronize() {}  // CPU tensors: done means done

bool WorkShardwire::wait(std::chrono::milliseconds timeout) {
  throwUnlessOk(work_->wait(timeout == kNoTimeout ? kNoDeadline : deadlineAfter(timeout)));
  return true;
}

c10::intrusive_ptr<Future> WorkShardwire::getFuture() {
  {
    const std::lock_guard lock(mutex_);
    if (future_) {
      return future_;
    }
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
  }
  // Outside of the lock: the callback runs here and now when the work is done, and user code may hang on the future later.
  work_->onDone([future = future_, tensors = tensors_](const Status& status) { complete(*future, *tensors, status); });
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

std::uint64_t WorkShardwire::getSequencenumber() const {
  return sequence_;
}

}  // namespace shardwire::internal
