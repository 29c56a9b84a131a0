#include "backend/communicator/flat_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/memory/shared_heap.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

bool FlatTensors::isFlat(const TensorView& view) {
  if (!hasStrides(view)) {
    return false;
  }
  std::int64_t expected = 1;
  for (int d = view.shape.size() - 1; d >= 0; --d) {
    if (view.strides[d] != expected) {
      return false;
    }
    expected *= view.shape[d];
  }
  return expected != 0;
}

Result<TensorView> FlatTensors::flatView(const TensorView& tensor, bool pack, bool unpack) {
  if (!hasStrides(tensor)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("a tensor {}", wrongStridesText(tensor)));
  }
  const std::int64_t elems = numElements(tensor.shape);
  if (elems == 0 || isContiguous(tensor)) {
    TensorView flat = TensorView::contiguous(tensor.bytes, tensor.dtype, {elems});
    flat.storage = tensor.storage;
    return flat;
  }
  if (!isAddressable(tensor)) {
    return Status(StatusCode::kInvalidArgument, fmt::format("a tensor of shape {} has strides {}, which are more bytes "
                                                            "than any memory has; where an extent is 1, pass a "
                                                            "stride that fits",
                                                            toString(tensor.shape), toString(tensor.strides)));
  }
  std::int64_t bytes = 0;  // an expanded tensor may have any number of elements
  if (__builtin_mul_overflow(elems, static_cast<std::int64_t>(elementBytes(tensor.dtype)), &bytes)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a tensor of shape {} has more bytes than any memory has", toString(tensor.shape)));
  }
  if (unpack && overlapsItself(tensor)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("a tensor of shape {} and strides {} has elements that share memory, and the operation "
                              "writes each element; pass a tensor without shared elements, as clone() makes",
                              toString(tensor.shape), toString(tensor.strides)));
  }
  Result<std::shared_ptr<void>> memory = allocateScratch(static_cast<std::size_t>(bytes));
  if (!memory.isOk()) {
    status_ = memory.status();
    return TensorView::contiguous(nullptr, tensor.dtype, {elems});
  }
  auto* packed = static_cast<std::byte*>(memory->get());
  if (copies_ == nullptr) {
    copies_ = std::make_shared<std::vector<Copy>>();
  }
  copies_->push_back({tensor, packed, std::move(*memory), pack, unpack});
  return TensorView::contiguous(packed, tensor.dtype, {elems});
}

Result<std::span<const TensorView>> FlatTensors::flattenAll(std::span<const TensorView> tensors, bool pack,
                                                            bool unpack) {
  if (std::ranges::all_of(tensors, isFlat)) {
    return tensors;
  }
  std::vector<TensorView>& flat = made_.emplace_front();
  flat.reserve(tensors.size());
  for (const TensorView& tensor : tensors) {
    Result<TensorView> view = flatView(tensor, pack, unpack);
    SW_RETURN_IF_ERROR(view.status());
    flat.push_back(*view);
  }
  return std::span<const TensorView>(flat);
}

void FlatTensors::pack(const std::vector<Copy>* copies) {
  for (std::size_t i = 0; copies != nullptr && i < copies->size(); ++i) {
    if (const Copy& copy = (*copies)[i]; copy.pack) {
      packBox(copy.packed, boxOf(copy.user, Dims::filled(copy.user.shape.size(), 0)), copy.user.shape,
              elementBytes(copy.user.dtype));
    }
  }
}

std::function<void()> FlatTensors::finish() const {
  return [copies = copies_] {
    for (const Copy& copy : *copies) {
      if (copy.unpack) {
        unpackBox(boxOf(copy.user, Dims::filled(copy.user.shape.size(), 0)), copy.packed, copy.user.shape,
                  elementBytes(copy.user.dtype));
      }
    }
  };
}

}  // namespace shardwire::internal
