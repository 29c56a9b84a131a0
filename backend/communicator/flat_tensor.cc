#include "backend/communicator/flat_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/memory/shared_heap.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/view_overlap.h"

namespace shardwire::internal {

namespace {

// Of any dtype: more elements have more bytes than any memory has.
constexpr std::int64_t kMostElements = std::int64_t{1} << 58;

bool isKnown(DType dtype) {
  return static_cast<int>(dtype) < kNumDTypes;
}

Status check(const TensorView& view) {
  if (!hasStrides(view)) {
    return {StatusCode::kInvalidArgument, fmt::format("a tensor {}", wrongStridesText(view))};
  }
  if (!isKnown(view.dtype)) {
    return {StatusCode::kInvalidArgument, fmt::format("a tensor has the dtype number {}; there are 0 to {}",
                                                      static_cast<int>(view.dtype), kNumDTypes - 1)};
  }
  const std::span<const std::int64_t> extents(view.shape.begin(), view.shape.end());
  if (std::ranges::any_of(extents, [](std::int64_t extent) { return extent < 0; })) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a tensor of shape {} has a negative extent", toString(view.shape))};
  }
  if (std::ranges::find(extents, 0) != extents.end()) {
    return Status::ok();
  }
  auto bytes =
      static_cast<std::int64_t>(elementBytes(view.dtype));  // an expanded tensor may have any number of elements
  for (const std::int64_t extent : extents) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("a tensor of shape {} has more bytes than any memory has", toString(view.shape))};
    }
  }
  return Status::ok();
}

}  // namespace

bool FlatTensors::isFlat(const TensorView& view) {
  if (!hasStrides(view) || !isKnown(view.dtype)) {
    return false;
  }
  std::int64_t expected = 1;
  for (int d = view.shape.size() - 1; d >= 0; --d) {
    if (view.strides[d] != expected || view.shape[d] <= 0 ||
        __builtin_mul_overflow(expected, view.shape[d], &expected)) {
      return false;
    }
  }
  return expected <= kMostElements;
}

Status FlatTensors::checkUse(const TensorView& view, bool isWritten) {
  SW_RETURN_IF_ERROR(check(view));
  if (numElements(view.shape) == 0 || isContiguous(view)) {
    return Status::ok();
  }
  if (!isAddressable(view)) {
    return {StatusCode::kInvalidArgument, fmt::format("a tensor of shape {} has strides {}, which are more bytes than "
                                                      "any memory has; where an extent is 1, pass a stride that fits",
                                                      toString(view.shape), toString(view.strides))};
  }
  if (isWritten && overlapsItself(view)) {
    return {StatusCode::kInvalidArgument,
            fmt::format("a tensor of shape {} and strides {} has elements that share memory, and the operation writes "
                        "each element; pass a tensor without shared elements, as clone() makes",
                        toString(view.shape), toString(view.strides))};
  }
  return Status::ok();
}

TensorView FlatTensors::flatView(const TensorView& tensor, bool pack, bool unpack) {
  const std::int64_t elems = numElements(tensor.shape);
  if (elems == 0 || isContiguous(tensor)) {
    TensorView flat = TensorView::contiguous(tensor.bytes, tensor.dtype, {elems});
    flat.storage = tensor.storage;
    return flat;
  }
  Result<std::shared_ptr<void>> memory = allocateScratch(static_cast<std::size_t>(elems) * elementBytes(tensor.dtype));
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

Result<std::span<const TensorView>> FlatTensors::flattenAll(std::span<const TensorView> tensors, const char* list,
                                                            bool pack, bool unpack) {
  if (std::ranges::all_of(tensors, isFlat)) {
    return tensors;
  }
  std::vector<TensorView>& flat = made_.emplace_front();
  flat.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (const Status found = checkUse(tensors[i], unpack); !found.isOk()) {
      const std::string which = list == nullptr ? "" : fmt::format("{}[{}] of rank {}: ", list, i, rank_);
      return Status(found.code(), fmt::format("{}: {}{}", call_, which, found.message()));
    }
    flat.push_back(flatView(tensors[i], pack, unpack));
  }
  return std::span<const TensorView>(flat);
}

void FlatTensors::pack(const std::vector<Copy>* copies) {
  for (std::size_t i = 0; copies != nullptr && i < copies->size(); ++i) {
    if (const Copy& copy = (*copies)[i]; copy.pack) {
      packBox(copy.packed, boxOf(copy.user), copy.user.shape, elementBytes(copy.user.dtype));
    }
  }
}

std::function<void()> FlatTensors::finish() const {
  return [copies = copies_] {
    for (const Copy& copy : *copies) {
      if (copy.unpack) {
        unpackBox(boxOf(copy.user), copy.packed, copy.user.shape, elementBytes(copy.user.dtype));
      }
    }
  };
}

}  // namespace shardwire::internal
