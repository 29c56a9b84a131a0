// Turns tensors into TensorViews for the core. Each function refuses tensors that a view cannot express, and the error
// says what to call instead.
#include "backend/c10d/tensor_adapter.h"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>

#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_compat.h"

namespace shardwire {

namespace internal {
namespace {
std::atomic<PythonThrower> pythonThrower{nullptr};  // acquire, release: the thrower's data is set up before the store

void throwInPython(const Status& status) {
  if (const PythonThrower thrower = pythonThrower.load(std::memory_order_acquire); thrower != nullptr) {
    thrower(status);
  }
}
}  // namespace

void setPythonThrower(PythonThrower thrower) {
  pythonThrower.store(thrower, std::memory_order_release);
}

void rethrowToPython(const StatusError& error) {
  throwInPython(error.status());
  throw;
}

void throwStatus(Status status) {
  if (status.code() == StatusCode::kInterrupted) {
    throwInPython(status);
  }
  throw StatusError(std::move(status));
}

}  // namespace internal

namespace internal {

std::string shapeText(const at::Tensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes();
  return toString(Dims(std::span(sizes.data(), std::min<std::size_t>(sizes.size(), kMaxDims))));
}

namespace {

std::string describeTensor(const at::Tensor& tensor) {
  return fmt::format("{} of shape {}", c10::toString(tensor.scalar_type()), shapeText(tensor));
}

// Bytes of the storage up to the end of the tensor's farthest element; nothing if 64 bits do not hold the number.
std::optional<std::size_t> bytesReached(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  std::int64_t reach = tensor.storage_offset() + 1;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(sizes[dim] - 1, strides[dim], &step) || __builtin_add_overflow(reach, step, &reach)) {
      return std::nullopt;
    }
  }
  std::size_t bytes = 0;
  return __builtin_mul_overflow(static_cast<std::size_t>(reach), static_cast<std::size_t>(tensor.element_size()),
                                &bytes)
             ? std::nullopt
             : std::optional(bytes);
}

[[noreturn]] void refuseStorage(const at::Tensor& tensor, std::string_view what) {
  const std::size_t has = tensor.storage().nbytes();
  if (has == 0) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} is {}, but its storage was freed (resize_(0), as FSDP does with parameters that are not in use): "
               "give the storage its size back first",
               what, describeTensor(tensor));
  }
  const std::optional<std::size_t> needs = bytesReached(tensor);
  if (needs.has_value() && *needs <= has) {
    refuseCall(StatusCode::kInvalidArgument, "{} has no memory to move (a FakeTensor, or an efficient zero tensor)",
               what);
  }
  refuseCall(StatusCode::kInvalidArgument,
             "{} is {}, a view that needs {} bytes of its storage, which has {}: the storage was made smaller "
             "after the view",
             what, describeTensor(tensor), needs.has_value() ? std::to_string(*needs) : "more than 2^64", has);
}

[[noreturn]] void refuse(const at::Tensor& tensor, std::string_view what) {
  if (!tensor.defined()) {
    refuseCall(StatusCode::kInvalidArgument, "{} is an undefined tensor", what);
  }
  if (tensor.layout() != c10::kStrided) {
    refuseCall(StatusCode::kUnsupported,
               "{} has a sparse or opaque layout; shardwire moves strided tensors: call to_dense() first", what);
  }
  if (tensor.is_quantized()) {
    refuseCall(StatusCode::kUnsupported, "{} is quantised; send int_repr(), scale and zero point instead", what);
  }
  if (tensor.is_meta()) {
    refuseCall(StatusCode::kInvalidArgument, "{} is a meta tensor: it has no memory to move", what);
  }
  if (tensor.has_storage() && !fitsStorage(tensor)) {
    refuseStorage(tensor, what);
  }
  if (!tensor.device().is_cpu()) {
    refuseCall(StatusCode::kUnsupported, "{} is on device {}, which this operation does not take: call cpu() first",
               what, tensor.device().str());
  }
  if (tensor.is_conj() || tensor.is_neg()) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} is a lazily conjugated or negated view; call resolve_conj() and resolve_neg() first", what);
  }
  if (!tensor.has_storage()) {
    refuseCall(StatusCode::kUnsupported, "{} has no storage of its own (a wrapper subclass?)", what);
  }
  refuseCall(StatusCode::kUnsupported, "{} has {} dimensions; shardwire knows up to {}", what, tensor.dim(), kMaxDims);
}

bool isPlain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.device().is_cpu() && !tensor.is_quantized() &&
         !tensor.is_conj() && !tensor.is_neg() && tensor.has_storage() && tensor.dim() <= kMaxDims &&
         fitsStorage(tensor);
}

Dims dimsOf(c10::IntArrayRef values) {
  return Dims(std::span<const std::int64_t>(values.data(), values.size()));
}

// A dimension of one element may have any stride, even a stride that overflows as bytes. No code steps along such a
// dimension, so the stride of a contiguous tensor is used instead. In a tensor without elements all dimensions are like
// this.
Dims stridesOf(const at::Tensor& tensor) {
  const c10::IntArrayRef sizes = tensor.sizes();
  Dims strides = dimsOf(tensor.strides());
  if (tensor.numel() == 0) {
    return Dims::filled(strides.size(), 1);
  }
  std::int64_t contiguous = 1;
  for (int dim = strides.size() - 1; dim >= 0; --dim) {
    const std::int64_t extent = sizes[static_cast<std::size_t>(dim)];
    if (extent == 1) {
      strides[dim] = contiguous;
    }
    contiguous = strides[dim] * extent;
  }
  return strides;
}

TensorView plainViewOf(const at::Tensor& tensor, const void* storage) {
  return {static_cast<std::byte*>(tensor.data_ptr()), dtypeOf(tensor.scalar_type()), dimsOf(tensor.sizes()),
          stridesOf(tensor), storage};
}

DType opaqueOf(std::size_t bytes) {
  switch (bytes) {
    case 1:
      return DType::kOpaque1;
    case 2:
      return DType::kOpaque2;
    case 4:
      return DType::kOpaque4;
    case 8:
      return DType::kOpaque8;
    default:
      return DType::kOpaque16;
  }
}

}  // namespace

void copyInto(const at::Tensor& to, const at::Tensor& from) {
  const c10::InferenceMode mode(to.is_inference());
  const c10::AutoGradMode noGradients(false);  // second, because the end of inference mode turns gradients on
  to.copy_(from);
}

bool fitsStorage(const at::Tensor& tensor) {
  const std::optional<std::size_t> reached = bytesReached(tensor);
  return reached.has_value() && *reached <= tensor.storage().nbytes() &&
         (*reached == 0 || tensor.storage().data() != nullptr);
}

void requireStorage(const at::Tensor& tensor, std::string_view what) {
  if (tensor.defined() && tensor.has_storage() && !tensor.is_meta() && !fitsStorage(tensor)) {
    refuseStorage(tensor, what);
  }
}

void bumpVersions(c10::ArrayRef<at::Tensor> written) {
  for (const at::Tensor& tensor : written) {
    if (!tensor.is_inference()) {  // inference tensors have no counter
      tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

OperationTensors tensorsOf(std::span<const at::Tensor> outputs, std::span<const at::Tensor> inputs) {
  OperationTensors tensors;
  tensors.outputs.append(outputs.begin(), outputs.end());
  tensors.inputs.append(inputs.begin(), inputs.end());
  return tensors;
}

DType dtypeOf(c10::ScalarType type) {
  for (const auto& [scalarType, dtype] : kScalarTypes) {
    if (scalarType == type) {
      return dtype;
    }
  }
  if (c10::isQIntType(type) || type == c10::ScalarType::Undefined) {
    refuseCall(StatusCode::kTypeError,
               "the elements of dtype {} are not plain numbers; shardwire cannot move tensors of this dtype",
               c10::toString(type));
  }
  return opaqueOf(c10::elementSize(type));
}

std::optional<c10::ScalarType> scalarTypeOf(DType dtype) {
  for (const auto& [scalarType, ours] : kScalarTypes) {
    if (ours == dtype) {
      return scalarType;
    }
  }
  return std::nullopt;
}

TensorView viewOf(const at::Tensor& tensor, std::string_view what) {
  if (!isPlain(tensor)) {
    refuse(tensor, what);
  }
  return plainViewOf(tensor, tensor.storage().unsafeGetStorageImpl());
}

TensorView deviceViewOf(const at::Tensor& tensor) {
  return plainViewOf(tensor, nullptr);
}

std::vector<TensorView> viewsOf(std::span<const at::Tensor> tensors, std::string_view what) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    // The name with its index is built for errors only: this runs in every call.
    if (!isPlain(tensors[i])) {
      refuse(tensors[i], fmt::format("{}[{}]", what, i));
    }
    views.push_back(plainViewOf(tensors[i], tensors[i].storage().unsafeGetStorageImpl()));
  }
  return views;
}

TensorView viewAs(const at::Tensor& tensor, const Dims& shape, std::string_view what) {
  TensorView view = viewOf(tensor, what);
  if (view.shape == shape) {
    return view;
  }
  if (tensor.is_contiguous() && tensor.numel() == numElements(shape)) {
    TensorView reshaped = TensorView::contiguous(view.bytes, view.dtype, shape);
    reshaped.storage = view.storage;
    return reshaped;
  }
  refuseCall(StatusCode::kInvalidArgument,
             "{} is {}, but shape {} is needed (or a contiguous tensor of as many elements)", what,
             describeTensor(tensor), toString(shape));
}

std::vector<TensorView> equalPieces(const at::Tensor& tensor, int count, const Dims& piece, std::string_view what) {
  const TensorView whole = viewOf(tensor, what);
  const auto elementSize = static_cast<std::int64_t>(elementBytes(whole.dtype));
  const auto tail = [](const Dims& dims) { return dims.span().subspan(1); };
  const auto equal = [](std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
    return std::ranges::equal(a, b);
  };
  std::vector<TensorView> pieces(static_cast<std::size_t>(count));
  TensorView first = whole;
  first.shape = piece;
  std::int64_t step = 0;
  if (!whole.shape.empty() && !piece.empty() && equal(tail(whole.shape), tail(piece)) &&
      whole.shape[0] == count * piece[0]) {
    step = piece[0] * whole.strides[0];
  } else if (!whole.shape.empty() && whole.shape[0] == count && equal(tail(whole.shape), piece.span())) {
    first.strides = Dims(tail(whole.strides));
    step = whole.strides[0];
  } else if (tensor.is_contiguous() && tensor.numel() == count * numElements(piece)) {
    first.strides = contiguousStrides(piece);
    step = numElements(piece);
  } else {
    refuseCall(StatusCode::kInvalidArgument,
               "{} is {}, which is not {} pieces of shape {}: concatenate or stack them along dim 0", what,
               describeTensor(tensor), count, toString(piece));
  }
  for (int i = 0; i < count; ++i) {
    pieces[static_cast<std::size_t>(i)] = first;
    if (first.bytes != nullptr) {
      pieces[static_cast<std::size_t>(i)].bytes += i * step * elementSize;
    }
  }
  return pieces;
}

std::vector<TensorView> rowPieces(const at::Tensor& tensor, int count, const std::vector<std::int64_t>& rowCounts,
                                  std::string_view what) {
  const TensorView whole = viewOf(tensor, what);
  if (whole.shape.empty()) {
    refuseCall(StatusCode::kInvalidArgument, "{} has no dimensions; there are no rows to split among {} ranks", what,
               count);
  }
  const std::int64_t rows = whole.shape[0];
  if (rowCounts.empty() && rows % count != 0) {
    refuseCall(StatusCode::kInvalidArgument,
               "{} has {} rows, which do not divide equally among {} ranks; give split sizes", what, rows, count);
  }
  if (!rowCounts.empty()) {
    std::int64_t left = rows;
    bool fits = static_cast<int>(rowCounts.size()) == count;
    for (const std::int64_t n : rowCounts) {
      fits = fits && 0 <= n && n <= left;
      left -= fits ? n : 0;
    }
    if (!fits || left != 0) {
      refuseCall(StatusCode::kInvalidArgument,
                 "{} has {} rows; the split sizes are [{}], but must be {} non-negative numbers adding up to {}", what,
                 rows, fmt::join(rowCounts, ", "), count, rows);
    }
  }
  const auto rowBytes = whole.strides[0] * static_cast<std::int64_t>(elementBytes(whole.dtype));
  std::vector<TensorView> pieces(static_cast<std::size_t>(count), whole);
  std::int64_t start = 0;
  for (int i = 0; i < count; ++i) {
    TensorView& piece = pieces[static_cast<std::size_t>(i)];
    piece.shape[0] = rowCounts.empty() ? rows / count : rowCounts[static_cast<std::size_t>(i)];
    if (whole.bytes != nullptr) {
      piece.bytes += start * rowBytes;
    }
    start += piece.shape[0];
  }
  return pieces;
}

}  // namespace internal
}  // namespace shardwire
