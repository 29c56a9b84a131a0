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
OperationTensors tensorsOf(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& inputs);

// ValueError-like for quantised types, which are not plain elements.
DType dtypeOf(c10::ScalarType type);
// The torch type of a dtype; nullopt for the opaque ones and those that this torch lacks.
std::optional<c10::ScalarType> scalarTypeOf(DType dtype);

// `what` names the tensor in errors: "all_reduce: tensor". Strided CPU tensors of any strides (those of devices through HostTensors);
// sparse, quantised, lazily conjugated, meta and device tensors are refused with what to do instead.
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
