// The tensors of one call as the host sees them: those of devices as host copies, the CPU's own as they are. Used by the caller's thread.
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

  // The tensor itself, or a copy to be filled from it (in, inOut) before the operation and to be brought back (out, inOut) by it. Throws
  // StatusError, in which `what` names the tensor. Anything but a plain tensor is returned as it is; later checks refuse it.
  at::Tensor in(const at::Tensor& tensor, std::string_view what) { return see(tensor, StagedTensors::Role::kIn, what); }
  at::Tensor out(const at::Tensor& tensor, std::string_view what) { return see(tensor, StagedTensors::Role::kOut, what); }
  at::Tensor inOut(const at::Tensor& tensor, std::string_view what) { return see(tensor, StagedTensors::Role::kInOut, what); }
  List in(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kIn, what); }
  List out(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kOut, what); }
  List inOut(const List& tensors, std::string_view what) { return see(tensors, StagedTensors::Role::kInOut, what); }

  // Null when all tensors are the CPU's.
  const std::shared_ptr<StagedTensors>& staged() const { return staged_; }
  // For an operation that was issued over them (null: it was refused). Without device tensors: `transport` itself.
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
