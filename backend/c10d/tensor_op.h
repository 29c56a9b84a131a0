// A CompiledOp that takes at::Tensors and gives c10d Works. All methods from any thread; they throw StatusError (kAborted once the group
// was shut down).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "backend/c10d/work_adapter.h"
#include "shardwire/compiled_op.h"

namespace shardwire {
namespace internal {
class DeviceStager;
}
class TensorOp;

// The tensors of one call, checked once: each run() moves their contents of that moment.
class __attribute__((visibility("default"))) BoundTensorOp {
 public:
  BoundTensorOp(std::shared_ptr<CompiledOp> op, std::unique_ptr<BoundOp> bound, std::shared_ptr<const internal::OperationTensors> tensors,
                int rank);
  // For tensors of devices, which are bound by name only.
  BoundTensorOp(std::shared_ptr<TensorOp> op, std::shared_ptr<const internal::OperationTensors> tensors, std::optional<Duration> timeout);
  c10::intrusive_ptr<internal::WorkShardwire> run();

 private:
  std::shared_ptr<CompiledOp> op_;  // declared first: outlives what it made
  std::unique_ptr<BoundOp> bound_;
  std::shared_ptr<TensorOp> unbound_;
  std::shared_ptr<const internal::OperationTensors> tensors_;
  std::optional<Duration> timeout_;
  int rank_;
};

class __attribute__((visibility("default"))) TensorOp {
 public:
  TensorOp(std::shared_ptr<CompiledOp> op, int rank, std::shared_ptr<internal::DeviceStager> stager);
  c10::intrusive_ptr<internal::WorkShardwire> run(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                                  std::optional<Duration> timeout = std::nullopt);
  std::unique_ptr<BoundTensorOp> bind(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                      std::optional<Duration> timeout = std::nullopt);
  // The compiled op's, and how tensors on devices are moved once some were.
  std::string explain() const;
  // Stats and specs.
  const CompiledOp& compiled() const { return *op_; }

 private:
  c10::intrusive_ptr<internal::WorkShardwire> runStaged(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                                        std::optional<Duration> timeout);

  std::shared_ptr<CompiledOp> op_;
  int rank_;
  std::shared_ptr<internal::DeviceStager> stager_;
};

}  // namespace shardwire
