// Differences between torch 1.13, 2.6 and 2.13, under one name each. Only this file and shardwire/torch_backend.h look
// at the torch version. Header only; any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/version.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "shardwire/types.h"

#define SW_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

#if SW_TORCH_AT_LEAST(2, 0)
#define SW_TORCH_SUPPLEMENT_FACTOR(supplement) (supplement).tensor_factor
#define SW_TORCH_OPTIONAL std::optional
#else
#define SW_TORCH_OPTIONAL c10::optional
#define SW_TORCH_SUPPLEMENT_FACTOR(supplement) \
  ((supplement).tensor_factors.empty() ? ::at::Tensor() : (supplement).tensor_factors.front())
#endif

// c10::Allocator::allocate lost its const, and copy_data appeared, in 2.2.
#if SW_TORCH_AT_LEAST(2, 2)
#define SW_TORCH_ALLOCATE_CONST
#else
#define SW_TORCH_ALLOCATE_CONST const
#endif

// Overrides of virtuals that only some versions have are written without `override`; clang would warn about these.
#if defined(__clang__)
#define SW_TORCH_VIRTUALS_BEGIN                                                                            \
  _Pragma("clang diagnostic push") _Pragma("clang diagnostic ignored \"-Winconsistent-missing-override\"") \
      _Pragma("clang diagnostic ignored \"-Woverloaded-virtual\"")
#define SW_TORCH_VIRTUALS_END _Pragma("clang diagnostic pop")
#else
#define SW_TORCH_VIRTUALS_BEGIN
#define SW_TORCH_VIRTUALS_END
#endif

namespace shardwire::internal {

// "2.13": the torch version of this build.
inline std::string torchVersion() {
  return std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR);
}

// Since 2.0 endCoalescing returns the Work of the whole batch; before, the two calls are hints without a result.
inline constexpr bool kTorchCoalesces = SW_TORCH_AT_LEAST(2, 0);
// Work::getFutureResult and its WorkResult.
#define SW_TORCH_HAS_WORK_RESULT SW_TORCH_AT_LEAST(2, 6)
// Backend::getError and its ErrorType.
#define SW_TORCH_HAS_ERROR_TYPE SW_TORCH_AT_LEAST(2, 8)
// c10d::cuda::StreamBlock (a wait in a stream, ended by the host), and the registry that makes StreamBlocks without
// CUDA's headers.
#define SW_TORCH_HAS_STREAM_BLOCK SW_TORCH_AT_LEAST(2, 9)
// torch's symmetric memory API: the handle and the allocator are classes to be derived from, and changed from version
// to version. Our classes fit torch 2.6 and 2.13; versions between were not compiled against.
#define SW_TORCH_HAS_SYMMETRIC_MEMORY \
  (SW_TORCH_AT_LEAST(2, 13) || (SW_TORCH_AT_LEAST(2, 6) && !SW_TORCH_AT_LEAST(2, 7)))
// In these versions allocators have names, and torch makes the tensors of a handle, reports the size of a signal pad,
// and defines the ops also without CUDA.
#define SW_TORCH_HAS_SYMM_BACKENDS SW_TORCH_AT_LEAST(2, 13)
// Backend::reconfigure, and a rank and size that a backend may change.
#define SW_TORCH_HAS_RECONFIGURE SW_TORCH_AT_LEAST(2, 14)
// c10d::Window.
#define SW_TORCH_HAS_WINDOW SW_TORCH_AT_LEAST(2, 14)
// Completion hooks and their WorkInfo.
#define SW_TORCH_HAS_WORK_INFO SW_TORCH_AT_LEAST(2, 1)

// Element types of this torch, and ours for each. Types of torch that are missing here travel as kOpaqueN.
inline constexpr auto kScalarTypes = std::to_array<std::pair<c10::ScalarType, DType>>({
  {c10::ScalarType::Bool, DType::kBool}, {c10::ScalarType::Byte, DType::kUInt8}, {c10::ScalarType::Char, DType::kInt8},
      {c10::ScalarType::Short, DType::kInt16}, {c10::ScalarType::Int, DType::kInt32},
      {c10::ScalarType::Long, DType::kInt64}, {c10::ScalarType::Half, DType::kFloat16},
      {c10::ScalarType::BFloat16, DType::kBFloat16}, {c10::ScalarType::Float, DType::kFloat32},
      {c10::ScalarType::Double, DType::kFloat64}, {c10::ScalarType::ComplexHalf, DType::kComplex32},
      {c10::ScalarType::ComplexFloat, DType::kComplex64}, {c10::ScalarType::ComplexDouble, DType::kComplex128},
#if SW_TORCH_AT_LEAST(2, 1)
      {c10::ScalarType::Float8_e4m3fn, DType::kFloat8E4M3FN}, {c10::ScalarType::Float8_e5m2, DType::kFloat8E5M2},
#endif
#if SW_TORCH_AT_LEAST(2, 2)
      {c10::ScalarType::Float8_e4m3fnuz, DType::kFloat8E4M3FNUZ},
      {c10::ScalarType::Float8_e5m2fnuz, DType::kFloat8E5M2FNUZ},
#endif
#if SW_TORCH_AT_LEAST(2, 3)
      {c10::ScalarType::UInt16, DType::kUInt16}, {c10::ScalarType::UInt32, DType::kUInt32},
      {c10::ScalarType::UInt64, DType::kUInt64},
#endif
#if SW_TORCH_AT_LEAST(2, 7)
      {c10::ScalarType::Float8_e8m0fnu, DType::kFloat8E8M0FNU},
#endif
});

}  // namespace shardwire::internal
