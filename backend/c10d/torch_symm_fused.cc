// The symm_mem ops that torch writes in Python over streams and a workspace. On the CPU each is a product and a
// collective of the group: a collective reads the shared heap in one copy, so a workspace would only add a copy. These
// kernels work between hosts as well.
#include "backend/c10d/torch_symm_ops.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/c10d/heap_allocator.h"
#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_symm_memory.h"
// After shardwire/torch_backend.h.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace shardwire::internal {
namespace {

using Group = c10::intrusive_ptr<ProcessGroupShardwire>;
using FusedWork = c10::intrusive_ptr<::c10d::Work>;

::c10d::ReduceOp reductionOfName(const char* op, const std::string& name) {
  const auto reduction = reduceOpNamed(name);
  if (!reduction.has_value()) {
    refuseCall(StatusCode::kInvalidArgument, "{}: '{}' is not a reduction; use {}", op, name, reduceOpNames());
  }
  return torchReduction(*reduction);
}

// Rows of all ranks, in rank order.
FusedWork gatherRows(const Group& group, at::Tensor& all, at::Tensor mine) {
  return group->_allgather_base(all, mine);
}

std::int64_t dimOf(const char* op, const at::Tensor& tensor, std::int64_t dim) {
  if (tensor.dim() < 2 || dim < 0 || dim >= tensor.dim()) {
    refuseCall(StatusCode::kInvalidArgument, "{}: dimension {} of a tensor of {}; give one of a matrix's or of more",
               op, dim, tensor.dim());
  }
  return dim;
}

void requireMatrix(const char* op, const at::Tensor& B) {
  if (B.dim() != 2) {
    refuseCall(StatusCode::kInvalidArgument, "{}: B has {} dimensions; it must be a matrix", op, B.dim());
  }
}

// The shards of all ranks put together along `dim`, in the layout that the products need: `dim` outermost, unless `dim`
// is the last dimension.
at::Tensor gathered(const Group& group, const at::Tensor& shard, std::int64_t dim) {
  const std::int64_t world = group->getSize();
  const bool isLast = dim == shard.dim() - 1;
  const at::Tensor mine = (isLast ? shard : shard.movedim(dim, 0)).contiguous();
  std::vector<std::int64_t> shape = mine.sizes().vec();
  shape[0] *= world;
  at::Tensor all = at::empty(shape, mine.options());
  gatherRows(group, all, mine)->wait();
  return isLast ? at::cat(all.chunk(world, 0), -1) : all;
}

std::tuple<std::optional<at::Tensor>, std::vector<at::Tensor>> fusedAllGatherMatmul(
    const at::Tensor& shard, at::TensorList Bs, std::int64_t gatherDim, std::string groupName, bool returnA) {
  constexpr const char* kName = "fused_all_gather_matmul";
  const std::int64_t dim = dimOf(kName, shard, gatherDim);
  for (const at::Tensor& B : Bs) {
    requireMatrix(kName, B);
  }
  const at::Tensor all = gathered(groupNamed(groupName, kName), shard, dim);
  const bool isLast = dim == shard.dim() - 1;
  std::vector<at::Tensor> products;
  for (const at::Tensor& B : Bs) {
    const at::Tensor product = at::matmul(all, B);
    products.push_back(isLast ? product : product.movedim(0, dim));
  }
  std::optional<at::Tensor> A;
  if (returnA) {
    A = isLast ? all : all.movedim(0, dim);
  }
  return {std::move(A), std::move(products)};
}

#if !SW_TORCH_HAS_SYMM_BACKENDS
std::tuple<at::Tensor, std::vector<at::Tensor>> fusedAllGatherMatmulWithA(const at::Tensor& shard, at::TensorList Bs,
                                                                          std::int64_t gatherDim,
                                                                          std::string groupName) {
  auto [A, products] = fusedAllGatherMatmul(shard, Bs, gatherDim, std::move(groupName), true);
  return {*std::move(A), std::move(products)};
}
#endif

// Reduces `whole`, cut in rank order along `dim`, into each rank's `out`.
FusedWork scatterReduced(const Group& group, const at::Tensor& whole, std::int64_t dim, ::c10d::ReduceOp op,
                         const at::Tensor& out) {
  std::vector<at::Tensor> outputs = {out};
  std::vector<std::vector<at::Tensor>> inputs = {whole.chunk(group->getSize(), dim)};
  ::c10d::ReduceScatterOptions options;
  options.reduceOp = op;
  return group->reduce_scatter(outputs, inputs, options);
}

std::vector<std::int64_t> shareOf(const char* op, const at::Tensor& whole, std::int64_t dim, std::int64_t world) {
  std::vector<std::int64_t> shape = whole.sizes().vec();
  std::int64_t& extent = shape[static_cast<std::size_t>(dim)];
  if (extent == 0 || extent % world != 0) {
    refuseCall(StatusCode::kInvalidArgument, "{}: dimension {} of {} does not divide by {} ranks", op, dim, extent,
               world);
  }
  extent /= world;
  return shape;
}

at::Tensor fusedMatmulReduceScatter(const at::Tensor& A, const at::Tensor& B, std::string reduceOp,
                                    std::int64_t scatterDim, std::string groupName) {
  constexpr const char* kName = "fused_matmul_reduce_scatter";
  const std::int64_t dim = dimOf(kName, A, scatterDim);
  requireMatrix(kName, B);
  const ::c10d::ReduceOp op = reductionOfName(kName, reduceOp);
  const Group group = groupNamed(groupName, kName);
  std::vector<std::int64_t> shape = A.sizes().vec();
  shape.back() = B.size(1);
  // The product lies in the heap, so that the other ranks reduce from the heap directly.
  const at::Tensor rows = A.flatten(0, -2);
  at::Tensor product = heapEmpty({rows.size(0), B.size(1)}, A.scalar_type());
  at::mm_out(product, rows, B);
  product = product.view(shape);
  const at::Tensor out = at::empty(shareOf(kName, product, dim, group->getSize()), A.options());
  scatterReduced(group, product, dim, op, out)->wait();
  return out;
}

// ---- low contention: these ops start the work, and torch's wait_tensor() waits for the work

at::Tensor lowContentionAllGather(const at::Tensor& tensor, std::string groupName) {
  constexpr const char* kName = "_low_contention_all_gather";
  if (tensor.dim() < 1) {
    refuseCall(StatusCode::kInvalidArgument, "{}: the tensor has no dimensions", kName);
  }
  const Group group = groupNamed(groupName, kName);
  std::vector<std::int64_t> shape = tensor.sizes().vec();
  shape[0] *= group->getSize();
  at::Tensor all = at::empty(shape, tensor.options());
  ::c10d::register_work(all, gatherRows(group, all, tensor));
  return all;
}

at::Tensor lowContentionReduceScatter(const at::Tensor& tensor, std::string reduceOp, std::string groupName) {
  constexpr const char* kName = "_low_contention_reduce_scatter";
  const ::c10d::ReduceOp op = reductionOfName(kName, reduceOp);
  if (tensor.dim() < 1) {
    refuseCall(StatusCode::kInvalidArgument, "{}: the tensor has no dimensions", kName);
  }
  const Group group = groupNamed(groupName, kName);
  const at::Tensor out = at::empty(shareOf(kName, tensor, 0, group->getSize()), tensor.options());
  ::c10d::register_work(out, scatterReduced(group, tensor, 0, op, out));
  return out;
}

}  // namespace

void implementSymmFusedOps(torch::Library& library) {
#if SW_TORCH_HAS_SYMM_BACKENDS
  library.impl("fused_all_gather_matmul", &KernelForPython<&fusedAllGatherMatmul>::call);
#else
  library.impl("fused_all_gather_matmul", &KernelForPython<&fusedAllGatherMatmulWithA>::call);
#endif
  library.impl("fused_matmul_reduce_scatter", &KernelForPython<&fusedMatmulReduceScatter>::call);
  library.impl("_low_contention_all_gather", &KernelForPython<&lowContentionAllGather>::call);
  library.impl("_low_contention_reduce_scatter", &KernelForPython<&lowContentionReduceScatter>::call);
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
