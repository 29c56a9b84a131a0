// A put goes through the symmetric memory of the registered tensor, and a signal is an atomic addition to the counter
// of the sending rank in the part of the receiving rank. The receiver waits until the counter has reached the number of
// signals that it waited for, so no signal is lost or counted twice, however many are under way. Registration is an
// exchange: all ranks name the block and the place of their tensors, and all get the same error.
#include "backend/c10d/window.h"

#if SW_TORCH_HAS_WINDOW

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <optional>
#include <utility>

#include "backend/c10d/symmetric_tensor.h"
#include "backend/c10d/throw_status.h"
#include "backend/c10d/without_python.h"

namespace shardwire::internal {
namespace {

std::optional<Duration> limitOf(std::chrono::milliseconds timeout) {
  return timeout.count() < 0 ? std::nullopt : std::optional<Duration>(timeout);
}

// The wait for a signal, or a call that is over: then both functions are empty.
class WindowWork final : public ::c10d::Work {
 public:
  using Wait = std::function<void(std::optional<Duration>)>;

  WindowWork(int rank, Wait wait, std::function<bool()> isOver)
      : ::c10d::Work(rank, ::c10d::OpType::UNKNOWN), wait_(std::move(wait)), isOver_(std::move(isOver)) {}

  bool isCompleted() override { return !isOver_ || isOver_(); }
  bool isSuccess() const override { return !isOver_ || isOver_(); }
  bool wait(std::chrono::milliseconds timeout) override {
    if (wait_) {
      const WithoutPython released;
      wait_(timeout.count() <= 0 ? std::nullopt : std::optional<Duration>(timeout));  // 0: torch's kNoTimeout
    }
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }

 private:
  const Wait wait_;
  const std::function<bool()> isOver_;
};

WindowShardwire::TorchWork doneWork(const Communicator& communicator) {
  return c10::make_intrusive<WindowWork>(communicator.rank(), nullptr, nullptr);
}

// Equal on all ranks. members: the job's ranks of the window's group.
Result<std::string> placeText(const at::Tensor& tensor, const std::vector<std::int64_t>& members) {
  const auto place = symmetricPlaceOf(tensor);
  if (!place.has_value() || place->block->isFreed()) {
    return Status{
        StatusCode::kInvalidArgument,
        "window: the tensor does not lie in symmetric memory: make it by shardwire.symm.empty() on all ranks"};
  }
  if (place->rank != place->block->rank() || !tensor.is_contiguous()) {
    return Status{StatusCode::kInvalidArgument,
                  "window: the tensor must be contiguous, and lie in this rank's own part"};
  }
  const std::vector<std::int64_t>& owners = place->block->jobRanks();
  if (owners != members) {
    return Status{
        StatusCode::kInvalidArgument,
        fmt::format("window: the tensor was made by a group of the job's ranks {}, and the window's group has "
                    "the ranks {}",
                    fmt::join(owners, ", "), fmt::join(members, ", "))};
  }
  return fmt::format("block {} of the job's ranks {}: {} [{}] at element {}", place->block->number(),
                     fmt::join(owners, ", "), c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "),
                     tensor.storage_offset());
}

}  // namespace

c10::intrusive_ptr<WindowShardwire> WindowShardwire::create(std::shared_ptr<Communicator> communicator,
                                                            std::vector<std::int64_t> jobRanks) {
  const WithoutPython released;
  const auto size = static_cast<std::size_t>(communicator->worldSize());
  SymmetricRequest request;
  request.bytes = size * sizeof(std::int64_t);
  request.text = "the counters of a window";
  request.isZeroed = true;
  request.jobRanks = std::move(jobRanks);
  auto block = valueOrThrow(communicator->makeSymmetric(request));
  at::Tensor counters =
      symmetricTensor(std::move(block), communicator->rank(), {communicator->worldSize()}, c10::ScalarType::Long);
  return c10::make_intrusive<WindowShardwire>(std::move(communicator), std::move(counters));
}

WindowShardwire::WindowShardwire(std::shared_ptr<Communicator> communicator, at::Tensor counters)
    : communicator_(std::move(communicator)),
      counters_(std::move(counters)),
      known_(c10::intrusive_ptr<c10::TensorImpl>()),
      taken_(static_cast<std::size_t>(communicator_->worldSize())) {}

Rank WindowShardwire::checkedRank(std::int64_t rank, const char* call) const {
  const int size = communicator_->worldSize();
  if (rank < 0 || rank >= size) {
    refuseCall(StatusCode::kInvalidArgument, "{}: rank {} is out of range: the group has {} ranks, 0 to {}", call, rank,
               size, size - 1);
  }
  return static_cast<Rank>(rank);
}

at::Tensor WindowShardwire::registered(const char* call) const {
  const MutexLock lock(mutex_);
  at::Tensor tensor(known_.lock());
  if (!tensor.defined()) {
    refuseCall(StatusCode::kInvalidArgument,
               "{}: the window has no tensor: call tensor_register() on all ranks, and keep the tensor "
               "where owning is False",
               call);
  }
  return tensor;
}

void WindowShardwire::tensor_register(const at::Tensor& tensor, bool owning) {
  const WithoutPython released;
  const auto text = placeText(tensor, symmetricPlaceOf(counters_)->block->jobRanks());
  throwUnlessOk(
      communicator_
          ->exchange(
              {.what = "window.tensor_register", .text = text.isOk() ? *text : std::string(), .error = text.status()})
          .status());
  const MutexLock lock(mutex_);
  known_ = c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr());
  owned_ = owning ? tensor : at::Tensor();
}

void WindowShardwire::tensor_deregister() {
  const WithoutPython released;
  throwUnlessOk(communicator_->symmetricBarrier());
  const MutexLock lock(mutex_);
  known_ = c10::weak_intrusive_ptr<c10::TensorImpl>(c10::intrusive_ptr<c10::TensorImpl>());
  owned_ = at::Tensor();
}

WindowShardwire::TorchWork WindowShardwire::put(const at::Tensor& tensor, std::int64_t peer, std::int64_t offset,
                                                bool /*isAsync*/, const ::c10d::PutOptions& options) {
  const WithoutPython released;
  const Rank to = checkedRank(peer, "window.put");
  const at::Tensor window = registered("window.put").view(-1);
  const at::Tensor from = tensor.contiguous().view(-1);
  if (offset < 0 || offset > window.numel() - from.numel()) {
    refuseCall(StatusCode::kInvalidArgument,
               "window.put: {} elements from element {} on do not fit the window's {} elements", from.numel(), offset,
               window.numel());
  }
  putTo(window.narrow(0, offset, from.numel()), from, to, false);
  throwUnlessOk(symmetricPlaceOf(window)->block->quiet(limitOf(options.timeout)));
  return doneWork(*communicator_);
}

at::Tensor WindowShardwire::map_remote_tensor(std::int64_t rank) {
  return peerTensor(registered("window.map_remote_tensor"), checkedRank(rank, "window.map_remote_tensor"));
}

WindowShardwire::TorchWork WindowShardwire::signal(std::int64_t peer, bool /*isAsync*/,
                                                   const ::c10d::SignalOptions& /*options*/) {
  const WithoutPython released;
  static_cast<void>(atomicOn(counters_.narrow(0, communicator_->rank(), 1), WordOp::kAdd,
                             checkedRank(peer, "window.signal"), 1, 0, false));
  return doneWork(*communicator_);
}

WindowShardwire::TorchWork WindowShardwire::wait_signal(std::int64_t peer, bool isAsync,
                                                        const ::c10d::WaitSignalOptions& options) {
  const Rank from = checkedRank(peer, "window.wait_signal");
  std::int64_t number = 0;
  {
    const MutexLock lock(mutex_);
    number = ++taken_[static_cast<std::size_t>(from)];
  }
  const at::Tensor counter = counters_.narrow(0, from, 1);
  auto wait = [counter, number, from, limit = limitOf(options.timeout)](std::optional<Duration> timeout) {
    static_cast<void>(waitOn(counter, Comparison::kGe, static_cast<std::uint64_t>(number),
                             timeout.has_value() ? timeout : limit, std::span(&from, 1)));
  };
  auto isOver = [counter, number, own = communicator_->rank()] {
    return static_cast<std::int64_t>(atomicOn(counter, WordOp::kFetch, own, 0, 0, true)) >= number;
  };
  auto work = c10::make_intrusive<WindowWork>(communicator_->rank(), std::move(wait), std::move(isOver));
  if (isAsync) {
    return work;
  }
  try {
    work->wait(kNoTimeout);
  } catch (...) {
    const MutexLock lock(mutex_);
    auto& taken = taken_[static_cast<std::size_t>(from)];
    taken -= taken == number ? 1 : 0;  // the next call waits for the same signal
    throw;
  }
  return work;
}

::c10d::WindowAttr WindowShardwire::get_attr(std::int64_t peer) {
  const auto place = symmetricPlaceOf(counters_);
  const bool isMapped = place->block->address(checkedRank(peer, "window.get_attr")) != nullptr;
  return {isMapped ? ::c10d::WindowAccessType::UNIFIED : ::c10d::WindowAccessType::SEPARATE};
}

}  // namespace shardwire::internal

#endif
