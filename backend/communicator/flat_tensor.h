// Collectives plan over flat, contiguous tensors. A tensor with other strides is packed into a copy when the operation
// starts, and unpacked at its end.
#pragma once

#include <forward_list>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/status.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// Makes flat views of the tensors of one call; owns the copies.
class FlatTensors {
 public:
  // `call` begins the errors' texts; a literal. `rank` is the caller's, for errors about lists.
  FlatTensors(const char* call, Rank rank) : call_(call), rank_(rank) {}

  // Whether operations can take the view as given; false where checkUse() finds an error. Views without elements are
  // made anew. So are views with a dimension of extent 1 and another stride than a row-major view: no arithmetic of
  // addresses may fit this stride.
  static bool isFlat(const TensorView& view);
  // The check of the functions below. kInvalidArgument where the view has not one stride per dimension, a negative
  // extent, more bytes than any memory, an unknown dtype, strides whose bytes have no addresses, or, for a view to
  // write, elements that share memory.
  SHARDWIRE_EXPORT static Status checkUse(const TensorView& view, bool isWritten);
  // A view of the tensor's elements in row-major order without gaps: the tensor itself where it is so, and otherwise a
  // flat view that lives as long as this object. Without memory for a copy, the view has no address and status() has
  // the error. The collective must still be issued, and fail at its position in the order (StartGate), because its
  // peers would wait otherwise.
  Result<const TensorView*> input(const TensorView& tensor) { return flatten(tensor, true, false); }
  // A view to write; finish() brings the written elements to the tensor.
  Result<const TensorView*> output(const TensorView& tensor) { return flatten(tensor, false, true); }
  Result<const TensorView*> inOut(const TensorView& tensor) { return flatten(tensor, true, true); }

  // The same for each tensor of a list.
  Result<std::span<const TensorView>> inputs(std::span<const TensorView> tensors) {
    return flattenAll(tensors, "inputs", true, false);
  }
  Result<std::span<const TensorView>> outputs(std::span<const TensorView> tensors) {
    return flattenAll(tensors, "outputs", false, true);
  }

  // kSystem: there was no memory for one of the copies.
  const Status& status() const { return status_; }

  // Packs the copies of inputs: call once, before anything reads the flat views. No effect without copies.
  void pack() const { pack(copies_.get()); }
  // pack() as a function that owns the copies.
  std::function<void()> packLater() const {
    return copies_ == nullptr ? std::function<void()>() : [copies = copies_] { pack(copies.get()); };
  }
  // Visits the tensors with copies.
  template <typename Visit>
  void forEachCopied(Visit&& visit) const {
    for (std::size_t i = 0; copies_ != nullptr && i < copies_->size(); ++i) {
      visit((*copies_)[i].user, (*copies_)[i].unpack);
    }
  }
  bool hasCopies() const { return copies_ != nullptr; }
  // Unpacks the copies of outputs. Owns the copies. Precondition: hasCopies().
  std::function<void()> finish() const;
  // Owns the copies; null without copies.
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
  Result<const TensorView*> flatten(const TensorView& tensor, bool pack, bool unpack) {
    if (isFlat(tensor)) {
      return &tensor;
    }
    const Result<std::span<const TensorView>> flat = flattenAll({&tensor, 1}, nullptr, pack, unpack);
    SW_RETURN_IF_ERROR(flat.status());
    return flat->data();
  }
  // `list`: the list's name for errors; null for a single tensor.
  Result<std::span<const TensorView>> flattenAll(std::span<const TensorView> tensors, const char* list, bool pack,
                                                 bool unpack);
  // The view is checked.
  TensorView flatView(const TensorView& tensor, bool pack, bool unpack);
  const char* const call_;
  const Rank rank_;
  std::forward_list<std::vector<TensorView>> made_;
  std::shared_ptr<std::vector<Copy>> copies_;
  Status status_;
};

}  // namespace shardwire::internal
