// Collectives plan over flat, contiguous tensors. A tensor that is not contiguous is packed into a copy when the operation starts, and
// unpacked at its end.
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
  // A flat view with the tensor's elements in row-major order. Where there is no memory for a copy the view has no address, and status()
  // tells: a collective is to be issued all the same, and to fail in its place in the order (StartGate), or its peers would wait.
  Result<TensorView> input(const TensorView& tensor) { return flatten(tensor, true, false); }
  // A flat view to write; what is written reaches the tensor in finish().
  Result<TensorView> output(const TensorView& tensor) { return flatten(tensor, false, true); }
  Result<TensorView> inOut(const TensorView& tensor) { return flatten(tensor, true, true); }

  // The same for each of a list.
  Result<std::vector<TensorView>> inputs(std::span<const TensorView> tensors) { return flattenAll(tensors, true, false); }
  Result<std::vector<TensorView>> outputs(std::span<const TensorView> tensors) { return flattenAll(tensors, false, true); }

  // kSystem: there was no memory for one of the copies.
  const Status& status() const { return status_; }

  // Packs the copies of inputs: to be called once, before anything reads the flat views. No effect when no copy was needed.
  void pack() const { pack(copies_.get()); }
  // The same as a function that holds the copies.
  std::function<void()> packLater() const {
    return copies_ == nullptr ? std::function<void()>() : [copies = copies_] { pack(copies.get()); };
  }
  // The tensors that copies stand for.
  template <typename Visit>
  void forEachCopied(Visit&& visit) const {
    for (std::size_t i = 0; copies_ != nullptr && i < copies_->size(); ++i) {
      visit((*copies_)[i].user, (*copies_)[i].unpack);
    }
  }
  // Unpacks the copies of outputs; empty when there are none. Holds the copies.
  std::function<void()> finish() const;
  // Holds the copies (null when none was needed).
  std::shared_ptr<void> memory() const { return copies_; }

 private:
  struct Copy {
    TensorView user;
    std::byte* packed;
    std::shared_ptr<void> memory;
    bool pack;
    bool unpack;
  };
  static void pack(const std::vector<Copy>* copies);
  Result<TensorView> flatten(const TensorView& tensor, bool pack, bool unpack);
  Result<std::vector<TensorView>> flattenAll(std::span<const TensorView> tensors, bool pack, bool unpack);
  std::shared_ptr<std::vector<Copy>> copies_;
  Status status_;
};

}  // namespace shardwire::internal
