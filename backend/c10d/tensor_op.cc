#include "backend/c10d/tensor_op.h"

#include "backend/c10d/status_error.h"

namespace shardwire {

using internal::OperationTensors;
using internal::WorkShardwire;

namespace {

constexpr const char* kTitle = "shardwire:compiled_op";

std::shared_ptr<const OperationTensors> kept(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs) {
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

}  // namespace

BoundTensorOp::BoundTensorOp(std::shared_ptr<CompiledOp> op, std::unique_ptr<BoundOp> bound,
                             std::shared_ptr<const OperationTensors> tensors, int rank)
    : op_(std::move(op)), bound_(std::move(bound)), tensors_(std::move(tensors)), rank_(rank) {}

c10::intrusive_ptr<WorkShardwire> BoundTensorOp::run() {
  return adapt(rank_, internal::valueOrThrow(bound_->run()), tensors_);
}

TensorOp::TensorOp(std::shared_ptr<CompiledOp> op, int rank) : op_(std::move(op)), rank_(rank) {}

c10::intrusive_ptr<WorkShardwire> TensorOp::run(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                                std::optional<Duration> timeout) {
  const auto inputViews = internal::viewsOf(inputs, "inputs");
  const auto outputViews = internal::viewsOf(outputs, "outputs");
  auto tensors = kept(inputs, outputs);
  WorkPtr work = internal::valueOrThrow(op_->run(inputViews, outputViews, opaque(tensors), timeout));
  return adapt(rank_, std::move(work), std::move(tensors));
}

std::unique_ptr<BoundTensorOp> TensorOp::bind(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                              std::optional<Duration> timeout) {
  const auto inputViews = internal::viewsOf(inputs, "inputs");
  const auto outputViews = internal::viewsOf(outputs, "outputs");
  auto tensors = kept(inputs, outputs);
  auto bound = internal::valueOrThrow(op_->bind(inputViews, outputViews, opaque(tensors), timeout));
  return std::make_unique<BoundTensorOp>(op_, std::move(bound), std::move(tensors), rank_);
}

}  // namespace shardwire
