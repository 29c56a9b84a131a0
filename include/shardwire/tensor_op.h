// A CompiledOp for at::Tensors that returns c10d Works: the result of compileOp() of shardwire/c10d.h. All methods may
// be called from any thread and throw StatusError (kAborted after shutdown of the group).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
// Before ATen.h, which Work.hpp includes: clang in C++20 wants IValue complete there.
#include <ATen/core/ivalue.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "shardwire/compiled_op.h"
#include "shardwire/export.h"
#include "shardwire/status_error.h"

namespace shardwire {

// The tensors of one call, checked once: each run() moves the tensors' contents of that moment.
class SHARDWIRE_EXPORT BoundTensorOp {
 public:
  virtual ~BoundTensorOp() = default;
  virtual c10::intrusive_ptr<::c10d::Work> run() = 0;
};

class SHARDWIRE_EXPORT TensorOp {
 public:
  virtual ~TensorOp() = default;
  // One tensor per element of the spec's inputs and outputs, in the spec's order; the Work keeps the tensors alive.
  // timeout: absent, the group's.
  virtual c10::intrusive_ptr<::c10d::Work> run(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                               std::optional<Duration> timeout = std::nullopt) = 0;
  virtual std::unique_ptr<BoundTensorOp> bind(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                                              std::optional<Duration> timeout = std::nullopt) = 0;
  // A table for people: what moves where, and by which path.
  virtual std::string explain() const = 0;
  // Stats and specs.
  virtual const CompiledOp& compiled() const = 0;
};

}  // namespace shardwire
