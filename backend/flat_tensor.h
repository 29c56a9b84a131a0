// Collectives plan over flat, contiguous tensors. A tensor that is not contiguous is packed into a copy first, and unpacked at the end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// Makes flat views of the tensors of one call; owns the copies it had to make.
class FlatTensors {
 public:
  // A flat view with the tensor's elements in row-major order.
  Result<TensorView> input(const TensorView& tensor) { return flatten(tensor, true, false); }
  // A flat view to write; what is written reaches the tensor in finish().
  Result<TensorView> output(const TensorView& tensor) { return flatten(tensor, false, true); }
  Result<TensorView> inOut(const TensorView& tensor) { return flatten(tensor, true, true); }

  // The same for each of a list.
  Result<std::vector<TensorView>> inputs(std::span<const TensorView> tensors) { return flattenAll(tensors, true, false); }
  Result<std::vector<TensorView>> outputs(std::span<const TensorView> tensors) { return flattenAll(tensors, false, true); }

  // Unpacks the copies of outputs; empty when there are none. Holds the copies.
  std::function<void()> finish() const;
  // Holds the copies (null when none was needed).
  std::shared_ptr<void> memory() const { return copies_; }

 private:
  struct Copy {
    TensorView user;
    std::byte* packed;
    std::shared_ptr<void> memory;
    bool unpack;
  };
  Result<TensorView> flatten(const TensorView& tensor, bool pack, bool unpack);
  Result<std::vector<TensorView>> flattenAll(std::span<const TensorView> tensors, bool pack, bool unpack);
  std::shared_ptr<std::vector<Copy>> copies_;
};

}  // namespace shardwire::internal
