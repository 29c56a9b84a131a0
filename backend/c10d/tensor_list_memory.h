// Checks which tensors of a c10d call may share memory, where the communicator cannot check, or checks too late: a call
// with lists becomes several operations, and is refused before the first of them is issued; of device tensors the
// communicator sees only copies. Throws StatusError; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shardwire/tensor_view.h"

namespace shardwire::internal {

struct ListNames;

// All tensors of one call: add each, then refuse() once.
class ListMemory {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

 public:
  explicit ListMemory(const char* call) : call_(call) {}

  // `operation`: which of the call's operations uses the tensor. `list` and up to two indices name it in errors.
  void reads(const at::Tensor& tensor, std::size_t operation, const char* list, std::size_t index = kNone) {
    uses_.push_back({&tensor, operation, list, index, kNone, false});
  }
  void writes(const at::Tensor& tensor, std::size_t operation, const char* list, std::size_t index = kNone,
              std::size_t inner = kNone) {
    uses_.push_back({&tensor, operation, list, index, inner, true});
  }
  // ValueError naming both tensors when two written tensors share memory, or when a written tensor shares memory with a
  // tensor read by another operation; and naming the tensor when elements of a written tensor share memory. For
  // in-place use within one operation: refuseSharedWithin(). The tensors are strided, of any device.
  void refuse();

 private:
  struct Use {
    const at::Tensor* tensor;
    std::size_t operation;
    const char* list;
    std::size_t index;
    std::size_t inner;
    bool written;
  };
  static std::string nameOf(const Use& use);

  const char* const call_;
  std::vector<Use> uses_;
};

// For one operation of a call with lists, the operation of the tensors at `index`: checkListMemory().
void refuseSharedWithin(const ListNames& names, std::size_t index, Rank rank, std::span<const TensorView> inputs,
                        std::span<const TensorView> outputs);

// The check of ListMemory for a list in which one operation writes each tensor.
void refuseSharedOutputs(const char* call, std::span<const at::Tensor> outputs);

// For a list whose tensors are each read and written in place. Returns for each tensor the index of the first identical
// tensor of the list, mostly the tensor's own index. ValueError when two tensors overlap otherwise, or elements of one.
std::vector<std::size_t> findRepeated(const char* call, std::span<const at::Tensor> tensors);

}  // namespace shardwire::internal
