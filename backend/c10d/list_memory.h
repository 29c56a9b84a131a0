// Which tensors of a c10d call may share memory, as far as the communicator cannot tell: lists of one call that become several operations,
// and tensors on devices, of which it sees copies. Throws StatusError; any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardwire::internal {

// All tensors of one call: add each, then refuse() once.
class ListMemory {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

 public:
  explicit ListMemory(const char* call) : call_(call) {}

  // `operation`: which of the call's operations uses the tensor. `list` and up to two indices name it in errors.
  void reads(const at::Tensor& tensor, std::size_t operation, const char* list, std::size_t index = kNone) {
    uses_.push_back({&tensor, operation, list, index, kNone, false});
  }
  void writes(const at::Tensor& tensor, std::size_t operation, const char* list, std::size_t index = kNone, std::size_t inner = kNone) {
    uses_.push_back({&tensor, operation, list, index, inner, true});
  }
  // ValueError naming both tensors when two written ones share memory, or a written one and one that another operation reads. Within one
  // operation the communicator knows what may be in place. The tensors are strided ones of any device.
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

// The same for a list of which each tensor is written, by one operation.
void refuseSharedOutputs(const char* call, std::span<const at::Tensor> outputs);

// Of a list whose tensors are each read and written in place: for each tensor the first one of the list that is the very same, mostly
// itself. ValueError when two overlap otherwise.
std::vector<std::size_t> findRepeated(const char* call, std::span<const at::Tensor> tensors);

}  // namespace shardwire::internal
