// at::Tensor -> TensorView, and element types both ways. Pure; any thread. Every function throws StatusError for
// unsuitable tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/tensor_view.h"

namespace shardwire::internal {

// The tensors of an operation in flight, kept alive. `outputs` is also the value of the operation's future.
struct OperationTensors {
  c10::SmallVector<at::Tensor, 1> outputs;
  c10::SmallVector<at::Tensor, 1> inputs;
};
// As torch's own in-place operations do: a backward pass that needs the old values then gets an error and not a wrong
// gradient. Any thread.
void bumpVersions(c10::ArrayRef<at::Tensor> written);
OperationTensors tensorsOf(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs);

// ValueError-like for quantised types, whose elements are not plain.
SHARDWIRE_EXPORT DType dtypeOf(c10::ScalarType type);
// The torch type of a dtype; nullopt for opaque types and types missing in this torch.
SHARDWIRE_EXPORT std::optional<c10::ScalarType> scalarTypeOf(DType dtype);

// For errors: the shape, or the first kMaxDims extents.
std::string shapeText(const at::Tensor& tensor);

// Tensor::copy_ outside of autograd. torch changes inference tensors in inference mode alone, which is a thread's.
void copyInto(const at::Tensor& to, const at::Tensor& from);

// Whether all elements of the tensor lie inside its storage: storages are resized, and freed, under tensors that stay.
// False too where the storage has a size and no memory, as of a FakeTensor. The tensor has a storage.
bool fitsStorage(const at::Tensor& tensor);
// Throws StatusError for a tensor with a storage that does not hold all elements; for code that reads the memory
// without a view. Such code refuses meta tensors itself.
SHARDWIRE_EXPORT void requireStorage(const at::Tensor& tensor, std::string_view what);

// `what` names the tensor in errors: "all_reduce: tensor". Takes strided CPU tensors of any strides (device tensors go
// through HostTensors). Sparse, quantised, lazily conjugated, meta and device tensors, and tensors with a freed
// storage, are refused; the error says what to do instead.
TensorView viewOf(const at::Tensor& tensor, std::string_view what);
// A view for checks, of a tensor on any device: the address is the device's.
SHARDWIRE_EXPORT TensorView deviceViewOf(const at::Tensor& tensor);
std::vector<TensorView> viewsOf(std::span<const at::Tensor> tensors, std::string_view what);
// `tensor` with the shape `shape`: `tensor` has this shape already, or is contiguous and has as many elements.
TensorView viewAs(const at::Tensor& tensor, const Dims& shape, std::string_view what);
// `count` equal pieces of `tensor`, each of shape `piece`: the tensor is a concatenation or stack of the pieces along
// dim 0 (any strides), or contiguous with as many elements as all pieces.
std::vector<TensorView> equalPieces(const at::Tensor& tensor, int count, const Dims& piece, std::string_view what);
// Rows along dim 0, cut by `rowCounts`, or into `count` equal parts if `rowCounts` is empty.
std::vector<TensorView> rowPieces(const at::Tensor& tensor, int count, const std::vector<std::int64_t>& rowCounts,
                                  std::string_view what);

}  // namespace shardwire::internal
