// shardwire/tensor_op.h over a CompiledOp: checks tensors, copies device tensors to the host and back, and adapts the
// Works.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/c10d/work_adapter.h"
#include "shardwire/export.h"
#include "shardwire/tensor_op.h"

namespace shardwire::internal {

class DeviceStager;
class TensorOpShardwire;

class BoundTensorOpShardwire final : public BoundTensorOp {
 public:
  BoundTensorOpShardwire(std::shared_ptr<CompiledOp> op, std::unique_ptr<BoundOp> bound,
                         std::shared_ptr<const OperationTensors> tensors, int rank, std::string name);
  // For device tensors: the tensors are kept, and each run copies them anew.
  BoundTensorOpShardwire(std::shared_ptr<TensorOpShardwire> op, std::shared_ptr<const OperationTensors> tensors,
                         std::optional<Duration> timeout);
  c10::intrusive_ptr<::c10d::Work> run() override { return start(); }
  // run() with the work's own class.
  SHARDWIRE_EXPORT c10::intrusive_ptr<WorkShardwire> start();

 private:
  void checkPlaces() const;

  std::shared_ptr<CompiledOp> op_;  // declared first: outlives the bound op
  std::unique_ptr<BoundOp> bound_;
  std::shared_ptr<TensorOpShardwire> unbound_;
  std::shared_ptr<const OperationTensors> tensors_;
  std::vector<TensorView> places_;  // of the tensors at bind(): inputs, then outputs
  std::optional<Duration> timeout_;
  int rank_;
  std::string name_;
};

class SHARDWIRE_EXPORT TensorOpShardwire final : public TensorOp {
 public:
  // `name`: the user's, for the profiler; may be empty. Without a stager: an op without a group, which can only
  // describe itself.
  TensorOpShardwire(std::shared_ptr<CompiledOp> op, int rank, std::shared_ptr<DeviceStager> stager, std::string name);
  c10::intrusive_ptr<::c10d::Work> run(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                       std::optional<Duration> timeout) override {
    return start(inputs, outputs, timeout);
  }
  std::unique_ptr<BoundTensorOp> bind(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                      std::optional<Duration> timeout) override {
    return bound(inputs, outputs, timeout);
  }
  // run() and bind() with their results' own classes.
  c10::intrusive_ptr<WorkShardwire> start(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                          std::optional<Duration> timeout);
  std::unique_ptr<BoundTensorOpShardwire> bound(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                                std::optional<Duration> timeout);
  // The compiled op's text, and how tensors on devices are moved once there were any.
  std::string explain() const override;
  const CompiledOp& compiled() const override { return *op_; }

 private:
  // Throws the error of an op without a group.
  void checkGroup() const;
  c10::intrusive_ptr<WorkShardwire> startStaged(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                                std::optional<Duration> timeout);

  std::shared_ptr<CompiledOp> op_;
  int rank_;
  std::shared_ptr<DeviceStager> stager_;
  std::string name_;
};

}  // namespace shardwire::internal
