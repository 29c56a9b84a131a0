#include "backend/c10d/tensor_op.h"

#include <algorithm>

#include "backend/c10d/host_tensors.h"
#include "backend/c10d/status_error.h"

namespace shardwire {

using internal::HostTensors;
using internal::OperationTensors;
using internal::WorkShardwire;

namespace {

constexpr const char* kTitle = "shardwire:compiled_op";
using Tensors = std::span<const at::Tensor>;

std::shared_ptr<const OperationTensors> kept(Tensors inputs, Tensors outputs) {
  auto tensors = std::make_shared<OperationTensors>();
  tensors->outputs.append(outputs.begin(), outputs.end());
  tensors->inputs.append(inputs.begin(), inputs.end());
  return tensors;
}

c10::intrusive_ptr<WorkShardwire> adapt(int rank, WorkPtr work, std::shared_ptr<const OperationTensors> tensors) {
  constexpr std::uint64_t kNoSequence = 0;  // asking the group for it would take a lock in every run
  return WorkShardwire::create(std::move(work), std::move(tensors), {rank, ::c10d::OpType::UNKNOWN, kNoSequence, kTitle});
}

// The core holds it as void; nothing there writes through it.
std::shared_ptr<void> opaque(const std::shared_ptr<const OperationTensors>& tensors) {
  return std::const_pointer_cast<OperationTensors>(tensors);
}

bool hasDeviceTensors(Tensors tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.defined() && !tensor.device().is_cpu(); });
}

// The host's view of each, and of each the view by which it is checked: a copy would always pass.
struct Views {
  std::vector<TensorView> seen;
  std::vector<TensorView> checked;
};

Views viewsOf(HostTensors& host, Tensors tensors, bool areInputs, const char* which) {
  const HostTensors::List list(tensors.begin(), tensors.end());
  const HostTensors::List seen = areInputs ? host.in(list, which) : host.out(list, which);
  Views views{internal::viewsOf(seen, which), {}};
  for (const at::Tensor& tensor : list) {
    views.checked.push_back(internal::deviceViewOf(tensor));
  }
  return views;
}

}  // namespace

BoundTensorOp::BoundTensorOp(std::shared_ptr<CompiledOp> op, std::unique_ptr<BoundOp> bound,
                             std::shared_ptr<const OperationTensors> tensors, int rank)
    : op_(std::move(op)), bound_(std::move(bound)), tensors_(std::move(tensors)), rank_(rank) {}

BoundTensorOp::BoundTensorOp(std::shared_ptr<TensorOp> op, std::shared_ptr<const OperationTensors> tensors, std::optional<Duration> timeout)
    : unbound_(std::move(op)), tensors_(std::move(tensors)), timeout_(timeout), rank_(0) {}

c10::intrusive_ptr<WorkShardwire> BoundTensorOp::run() {
  if (unbound_ != nullptr) {
    const auto& inputs = tensors_->inputs;
    const auto& outputs = tensors_->outputs;
    return unbound_->run({inputs.data(), inputs.size()}, {outputs.data(), outputs.size()}, timeout_);
  }
  return adapt(rank_, internal::valueOrThrow(bound_->run()), tensors_);
}

TensorOp::TensorOp(std::shared_ptr<CompiledOp> op, int rank, std::shared_ptr<internal::DeviceStager> stager)
    : op_(std::move(op)), rank_(rank), stager_(std::move(stager)) {}

c10::intrusive_ptr<WorkShardwire> TensorOp::run(Tensors inputs, Tensors outputs, std::optional<Duration> timeout) {
  if (hasDeviceTensors(inputs) || hasDeviceTensors(outputs)) {
    return runStaged(inputs, outputs, timeout);
  }
  const auto inputViews = internal::viewsOf(inputs, "inputs");
  const auto outputViews = internal::viewsOf(outputs, "outputs");
  auto tensors = kept(inputs, outputs);
  WorkPtr work = internal::valueOrThrow(op_->run(inputViews, outputViews, opaque(tensors), timeout));
  return adapt(rank_, std::move(work), std::move(tensors));
}

c10::intrusive_ptr<WorkShardwire> TensorOp::runStaged(Tensors inputs, Tensors outputs, std::optional<Duration> timeout) {
  HostTensors host(stager_);
  const Views inputViews = viewsOf(host, inputs, true, "inputs");
  const Views outputViews = viewsOf(host, outputs, false, "outputs");
  internal::throwUnlessOk(op_->check(inputViews.checked, outputViews.checked));
  auto tensors = kept(inputs, outputs);
  auto alive = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(opaque(tensors), host.staged());
  Result<WorkPtr> issued = op_->run(inputViews.seen, outputViews.seen, std::move(alive), timeout, host.staged().get());
  WorkPtr work = host.begin(issued.isOk() ? std::move(issued).value() : nullptr, opaque(tensors));
  internal::throwUnlessOk(issued.status());
  return adapt(rank_, std::move(work), std::move(tensors));
}

std::string TensorOp::explain() const {
  return op_->explain() + stager_->describe();
}

std::unique_ptr<BoundTensorOp> TensorOp::bind(Tensors inputs, Tensors outputs, std::optional<Duration> timeout) {
  auto tensors = kept(inputs, outputs);
  if (hasDeviceTensors(inputs) || hasDeviceTensors(outputs)) {
    // Each run has host copies of its own. What a run would refuse is refused now.
    HostTensors host(stager_);
    const Views inputViews = viewsOf(host, inputs, true, "inputs");
    const Views outputViews = viewsOf(host, outputs, false, "outputs");
    internal::throwUnlessOk(op_->check(inputViews.checked, outputViews.checked));
    return std::make_unique<BoundTensorOp>(std::make_shared<TensorOp>(op_, rank_, stager_), std::move(tensors), timeout);
  }
  const auto inputViews = internal::viewsOf(inputs, "inputs");
  const auto outputViews = internal::viewsOf(outputs, "outputs");
  auto bound = internal::valueOrThrow(op_->bind(inputViews, outputViews, opaque(tensors), timeout));
  return std::make_unique<BoundTensorOp>(op_, std::move(bound), std::move(tensors), rank_);
}

}  // namespace shardwire
