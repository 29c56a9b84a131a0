// at::Tensor -> TensorView, and element types both ways. Pure; any thread. Every function throws StatusError on what it cannot express.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// What an operation in flight keeps alive. `outputs` is also the value of its future.
struct OperationTensors {
  c10::SmallVector<at::Tensor, 1> outputs;
  c10::SmallVector<at::Tensor, 1> inputs;
};
// As torch's own operations in place do, so that a backward that needs what was there before is an error and not a wrong gradient. Any
// thread.
void bumpVersions(c10::ArrayRef<at::Tensor> written);
OperationTensors tensorsOf(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

// ValueError-like for quantised types, which are not plain elements.
DType dtypeOf(c10::ScalarType type);
// The torch type of a dtype; nullopt for the opaque ones and those that this torch lacks.
std::optional<c10::ScalarType> scalarTypeOf(DType dtype);

// Whether all elements of the tensor, which has a storage, lie inside of it: storages are resized, and freed, under tensors that stay.
bool fitsStorage(const at::Tensor& tensor);
// Throws StatusError for a tensor that has a storage into which it does not fit; for who reads the memory without a view.
void requireStorage(const at::Tensor& tensor, std::string_view what);

// `what` names the tensor in errors: "all_reduce: tensor". Strided CPU tensors of any strides (those of devices through HostTensors);
// sparse, quantised, lazily conjugated, meta and device tensors, and those whose storage was freed, are refused with what to do instead.
TensorView viewOf(const at::Tensor& tensor, std::string_view what);
// What checks need to know of a tensor on any device: the address is the device's.
TensorView deviceViewOf(const at::Tensor& tensor);
std::vector<TensorView> viewsOf(std::span<const at::Tensor> tensors, std::string_view what);
// `tensor` seen as `shape`: it has that shape, or is contiguous and has as many elements.
TensorView viewAs(const at::Tensor& tensor, const Dims& shape, std::string_view what);
// `count` equal pieces of `tensor`, each of shape `piece`: the tensor is their concatenation or stack along dim 0 (any strides), or
// contiguous with that many elements.
std::vector<TensorView> equalPieces(const at::Tensor& tensor, int count, const Dims& piece, std::string_view what);
// Rows along dim 0, cut by `rowCounts`, or into `count` equal parts when that is empty.
std::vector<TensorView> rowPieces(const at::Tensor& tensor, int count, const std::vector<std::int64_t>& rowCounts, std::string_view what);

}  // namespace shardwire::internal
