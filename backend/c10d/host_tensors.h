// The tensors of one call in host memory: a host copy of each device tensor, and CPU tensors unchanged. Used by the
// caller's thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "backend/c10d/device_stager.h"
#include "shardwire/work.h"

namespace shardwire::internal {

class HostTensors {
 public:
  using List = std::vector<at::Tensor>;

  explicit HostTensors(std::shared_ptr<DeviceStager> stager) : stager_(std::move(stager)) {}

  // Returns a CPU tensor unchanged. For a device tensor returns a host copy: the operation fills the copy from the
  // device (in, inOut) before the start and copies the result back (out, inOut). Throws StatusError, in which `what`
  // names the tensor. A tensor that is not plain is returned unchanged; later checks refuse such tensors.
  at::Tensor in(const at::Tensor& tensor, std::string_view what) { return see(tensor, StagedTensors::Role::kIn, what); }
  at::Tensor out(const at::Tensor& tensor, std::string_view what) {
    return see(tensor, StagedTensors::Role::kOut, what);
  }
  at::Tensor inOut(const at::Tensor& tensor, std::string_view what) {
    return see(tensor, StagedTensors::Role::kInOut, what);
  }
  List in(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kIn, what); }
  List out(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kOut, what); }
  List inOut(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kInOut, what); }

  // Null when all tensors are the CPU's.
  const std::shared_ptr<StagedTensors>& staged() const { return staged_; }
  // To be called after an operation was issued over these tensors (null: the operation was refused). Without device
  // tensors: returns `transport` itself.
  WorkPtr begin(WorkPtr transport, std::shared_ptr<void> keepAlive);

 private:
  at::Tensor see(const at::Tensor& tensor, StagedTensors::Role role, std::string_view what);
  List see(const List& tensors, StagedTensors::Role role, std::string_view what);
  at::Tensor copyOf(const at::Tensor& tensor, StagedTensors::Role role, std::string_view what);

  const std::shared_ptr<DeviceStager> stager_;
  std::shared_ptr<StagedTensors> staged_;
  bool hasHostTensors_ = false;
};

}  // namespace shardwire::internal
