// Every collective op goes the same way: a Meeting checks this rank's arguments and compares the ranks' reports, then
// each rank reads or writes its peers' parts, and a barrier at the end frees the parts for the next op. One-shot ops
// reduce all elements on every rank. Two-shot ops reduce one chunk on each rank and share it. Scatter and gather, the
// tensors of peers and the 32-bit words follow, and at the end the registration of the kernels.
#include "backend/c10d/torch_symm_ops.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_symm_meeting.h"
#include "ops/boxes/copy_box.h"
#include "ops/boxes/reduce_box.h"
#include "ops/collectives/stages.h"
// After shardwire/torch_backend.h.
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

namespace shardwire::internal {
namespace {

// A chunk of a long tensor that is reduced and sent on while it is in the cache.
constexpr std::int64_t kPieceBytes = 128 << 10;

ReduceOp reductionFor(const std::string& name, DType dtype) {
  const auto op = reduceOpNamed(name);
  if (!op.has_value()) {
    refuseCall(StatusCode::kInvalidArgument, "'{}' is not a reduction; use {}", name, reduceOpNames());
  }
  if (!supportsReduction(dtype, *op)) {
    refuseCall(StatusCode::kInvalidArgument, "{} is not defined on {}", reduceOpName(*op), dtypeName(dtype));
  }
  return *op;
}

void requireForm(const TensorView& out, DType dtype, const Dims& shape, const char* what = "out") {
  if (out.dtype != dtype || !(out.shape == shape)) {
    refuseCall(StatusCode::kInvalidArgument, "{} is {}{}, and {}{} is needed", what, dtypeName(out.dtype),
               toString(out.shape), dtypeName(dtype), toString(shape));
  }
}

// dst = the reduction of the same box of all parts, `more` bytes further, in rank order.
void reduceAll(const StridedBox& dst, const SymmetricOperand& from, std::int64_t more, const Dims& shape, ReduceOp op) {
  if (numElements(shape) == 0) {
    return;
  }
  std::vector<StridedBox> sources;
  for (Rank rank = 0; rank < from.memory->get_world_size(); ++rank) {
    sources.push_back(from.box(rank, more));
  }
  reduceBox(dst, sources, shape, from.view.dtype, op);
}

// ---- one shot: each rank reduces all elements

at::Tensor oneShot(const char* name, const at::Tensor& input, const std::string& reduceOp, const std::string& group,
                   at::Tensor out, Rank root = -1) {
  Meeting meeting(handleFor(input, group, name), name, reduceOp);
  SymmetricOperand from;
  TensorView to;
  ReduceOp op = ReduceOp::kSum;
  const bool isMine = root < 0 || root == meeting.rank();
  meeting.check([&] {
    from = operandOf(meeting.memory(), input, "input");
    op = reductionFor(reduceOp, from.view.dtype);
    if (root >= meeting.worldSize()) {
      refuseCall(StatusCode::kInvalidArgument, "root {} is out of range: the group has {} ranks", root,
                 meeting.worldSize());
    }
    if (isMine) {
      to = viewOf(out, "out");
      requireForm(to, from.view.dtype, from.view.shape);
      requireApart(to, from, "out");
    }
  });
  meeting.add("input", from);
  meeting.add("root", root);
  meeting.meet();
  if (isMine) {
    reduceAll(boxOf(to), from, 0, to.shape, op);
  }
  meeting.leave();
  return out;
}

at::Tensor oneShotAllReduceOut(const at::Tensor& input, std::string reduceOp, std::string group, at::Tensor out) {
  return oneShot("one_shot_all_reduce", input, reduceOp, group, std::move(out));
}

at::Tensor oneShotAllReduce(const at::Tensor& input, std::string reduceOp, std::string group) {
  return oneShot("one_shot_all_reduce", input, reduceOp, group, at::empty_like(input));
}

at::Tensor multimemOneShotAllReduceOut(const at::Tensor& input, std::string reduceOp, std::string group,
                                       at::Tensor out) {
  return oneShot("multimem_one_shot_all_reduce", input, reduceOp, group, std::move(out));
}

at::Tensor multimemOneShotAllReduce(const at::Tensor& input, std::string reduceOp, std::string group) {
  return oneShot("multimem_one_shot_all_reduce", input, reduceOp, group, at::empty_like(input));
}

at::Tensor multimemOneShotReduceOut(const at::Tensor& input, std::string reduceOp, std::int64_t root, std::string group,
                                    at::Tensor out) {
  constexpr std::int64_t kNoRank = 1 << 30;  // rejected like any other bad rank, whatever value the caller gave
  const auto rank = static_cast<Rank>(root < 0 ? kNoRank : std::min(root, kNoRank));
  return oneShot("multimem_one_shot_reduce", input, reduceOp, group, std::move(out), rank);
}

// Copies `local` to the first elements of `buffer`, then goes on like a one-shot op on these elements.
at::Tensor oneShotAllReduceCopyOut(const at::Tensor& buffer, const at::Tensor& local, std::string reduceOp,
                                   std::string group, at::Tensor out) {
  constexpr const char* kName = "one_shot_all_reduce_copy";
  Meeting meeting(handleFor(buffer, group, kName), kName, reduceOp);
  SymmetricOperand from;
  TensorView to;
  ReduceOp op = ReduceOp::kSum;
  meeting.check([&] {
    from = operandOf(meeting.memory(), buffer, "symm_buffer");
    requireContiguous(buffer, "symm_buffer");
    const TensorView own = viewOf(local, "local_input");
    if (own.dtype != from.view.dtype || numElements(own.shape) > numElements(from.view.shape)) {
      refuseCall(StatusCode::kInvalidArgument,
                 "local_input is {}{}, and symm_buffer {}{}: it must hold as many elements of the same dtype",
                 dtypeName(own.dtype), toString(own.shape), dtypeName(from.view.dtype), toString(from.view.shape));
    }
    op = reductionFor(reduceOp, own.dtype);
    to = viewOf(out, "out");
    requireForm(to, own.dtype, own.shape);
    requireApart(to, from, "out");
    from.view.shape = own.shape;
    from.view.strides = contiguousStrides(own.shape);
    if (numElements(own.shape) > 0) {  // no rank reads the buffer now: the op before ended with a barrier
      copyBox(from.box(meeting.rank()), boxOf(own), own.shape, elementBytes(own.dtype));
    }
  });
  meeting.add("local_input in symm_buffer", from);
  meeting.meet();
  reduceAll(boxOf(to), from, 0, to.shape, op);
  meeting.leave();
  return out;
}

at::Tensor oneShotAllReduceCopy(const at::Tensor& buffer, const at::Tensor& local, std::string reduceOp,
                                std::string group) {
  return oneShotAllReduceCopyOut(buffer, local, std::move(reduceOp), std::move(group), at::empty_like(local));
}

// ---- two shots: each rank reduces a chunk, and all ranks get each chunk

// [first, last) of the rank's chunk, in elements.
std::pair<std::int64_t, std::int64_t> chunkOfOperand(const SymmetricOperand& operand, Rank rank) {
  return chunkOf({.dtype = operand.view.dtype, .numElems = numElements(operand.view.shape)}, rank,
                 operand.memory->get_world_size());
}

// Reduces the chunk of this rank over all parts, into this rank's own part and, with `toAll`, into every part. No other
// rank touches this chunk.
void reduceChunk(const SymmetricOperand& operand, ReduceOp op, bool toAll) {
  const TorchSymmetricMemory& memory = *operand.memory;
  const Rank self = operand.memory->get_rank();
  const int worldSize = operand.memory->get_world_size();
  const auto elemBytes = static_cast<std::int64_t>(elementBytes(operand.view.dtype));
  const auto [first, last] = chunkOfOperand(operand, self);
  const std::int64_t piece = std::max<std::int64_t>(1, kPieceBytes / elemBytes);
  std::vector<const std::byte*> sources(static_cast<std::size_t>(worldSize));
  for (std::int64_t at = first; at < last; at += piece) {
    const std::int64_t count = std::min(piece, last - at);
    const std::int64_t byte = operand.byteOffset + at * elemBytes;
    for (Rank rank = 0; rank < worldSize; ++rank) {
      sources[static_cast<std::size_t>(rank)] = memory.part(rank) + byte;
    }
    std::byte* const mine = memory.part(self) + byte;
    reduceContiguous(mine, sources, static_cast<std::size_t>(count), operand.view.dtype, op);
    for (Rank rank = 0; toAll && rank < worldSize; ++rank) {
      if (rank != self) {
        copyRun(memory.part(rank) + byte, mine, static_cast<std::size_t>(count * elemBytes), StoreHint::kAuto);
      }
    }
  }
}

// `out` null: in place.
void twoShot(const char* name, const at::Tensor& input, const std::string& reduceOp, const std::string& group,
             const at::Tensor* out) {
  Meeting meeting(handleFor(input, group, name), name, reduceOp);
  SymmetricOperand operand;
  TensorView to;
  ReduceOp op = ReduceOp::kSum;
  meeting.check([&] {
    operand = operandOf(meeting.memory(), input, "input");
    requireContiguous(input, "input");
    op = reductionFor(reduceOp, operand.view.dtype);
    if (out != nullptr) {
      to = viewOf(*out, "output");
      requireContiguous(*out, "output");
      requireForm(to, operand.view.dtype, operand.view.shape);
      requireApart(to, operand, "output");
    }
  });
  meeting.add("input", operand);
  meeting.add(
      "in place",
      out == nullptr ? 1 : 0);  // in place the other ranks write this rank's part, otherwise this rank reads theirs
  meeting.meet();
  reduceChunk(operand, op, out == nullptr);
  meeting.leave();
  if (out == nullptr) {
    return;
  }
  const auto elemBytes = static_cast<std::int64_t>(elementBytes(operand.view.dtype));
  for (int step = 0; step < meeting.worldSize(); ++step) {
    const Rank rank = (meeting.rank() + step) % meeting.worldSize();  // the ranks begin at different parts
    const auto [first, last] = chunkOfOperand(operand, rank);
    if (first < last) {
      copyRun(to.bytes + first * elemBytes, operand.bytes(rank) + first * elemBytes,
              static_cast<std::size_t>((last - first) * elemBytes), StoreHint::kAuto);
    }
  }
  meeting.leave();
}

at::Tensor twoShotAllReduce(at::Tensor input, std::string reduceOp, std::string group) {
  twoShot("two_shot_all_reduce_", input, reduceOp, group, nullptr);
  return input;
}

at::Tensor twoShotAllReduceOut(at::Tensor input, std::string reduceOp, std::string group, at::Tensor output) {
  const bool isInPlace = output.defined() && output.is_same(input);
  twoShot("two_shot_all_reduce_out", input, reduceOp, group, isInPlace ? nullptr : &output);
  return output;
}

at::Tensor multimemAllReduce(const at::Tensor& input, std::string reduceOp, std::string group) {
  twoShot("multimem_all_reduce_", input, reduceOp, group, nullptr);
  return input;
}

// ---- scatter and gather

// Always a sum, as in torch. This rank's share is its range of columns, or its range of all elements.
at::Tensor reduceScatterOut(at::Tensor input, std::string group, bool splitLastDim, at::Tensor output) {
  constexpr const char* kName = "reduce_scatter";
  Meeting meeting(handleFor(input, group, kName), kName);
  SymmetricOperand from;
  TensorView to;
  std::int64_t more = 0;
  meeting.check([&] {
    from = operandOf(meeting.memory(), input, "input");
    requireContiguous(input, "input");
    requireContiguous(output, "output");
    to = viewOf(output, "output");
    (void)reductionFor("sum", from.view.dtype);
    const std::int64_t size = meeting.worldSize();
    Dims share = from.view.shape;
    if (splitLastDim) {
      if (share.empty() || share[share.size() - 1] % size != 0) {
        refuseCall(StatusCode::kInvalidArgument, "the last dimension of input, {}, does not divide by {} ranks",
                   toString(share), size);
      }
      share[share.size() - 1] /= size;
      more = share[share.size() - 1] * meeting.rank();
    } else {
      if (share.size() != 1 || share[0] % size != 0) {
        refuseCall(StatusCode::kInvalidArgument,
                   "input is of shape {}: without split_last_dim it must have one dimension that divides by {} ranks",
                   toString(share), size);
      }
      share[0] /= size;
      more = share[0] * meeting.rank();
    }
    requireForm(to, from.view.dtype, share, "output");
    requireApart(to, from, "output");
  });
  meeting.add("input", from);
  meeting.add("split_last_dim", splitLastDim ? 1 : 0);
  meeting.meet();
  reduceAll(boxOf(to), from, more * static_cast<std::int64_t>(elementBytes(to.dtype)), to.shape, ReduceOp::kSum);
  meeting.leave();
  return output;
}

at::Tensor multimemAllGatherOut(const at::Tensor& input, std::string group, at::Tensor out) {
  constexpr const char* kName = "multimem_all_gather";
  Meeting meeting(handleFor(out, group, kName), kName);
  SymmetricOperand to;
  TensorView from;
  meeting.check([&] {
    to = operandOf(meeting.memory(), out, "out");
    from = viewOf(input, "input");
    Dims whole = from.shape;
    if (whole.empty()) {
      refuseCall(StatusCode::kInvalidArgument,
                 "input has no dimensions: give at least one, along which the ranks' inputs are put together");
    }
    whole[0] *= meeting.worldSize();
    requireForm(to.view, from.dtype, whole);
    requireContiguous(out, "out");
    const std::byte* const own = to.bytes(meeting.rank()) + meeting.rank() * static_cast<std::int64_t>(input.nbytes());
    if (from.bytes != own || !input.is_contiguous()) {  // input may be this rank's piece of out
      requireApart(from, to, "input");
    }
  });
  meeting.add("out", to);
  meeting.meet();
  for (int step = 0; step < meeting.worldSize() && input.numel() > 0; ++step) {
    const Rank rank = (meeting.rank() + step) % meeting.worldSize();
    copyBox(to.box(rank, meeting.rank() * static_cast<std::int64_t>(input.nbytes())), boxOf(from), from.shape,
            elementBytes(from.dtype));
  }
  meeting.leave();
  return out;
}

// ---- peers

// Each tensor keeps all parts alive.
std::vector<at::Tensor> remoteTensors(const at::Tensor& x, std::string group) {
  const SymmetricHandle memory = handleFor(x, group, "get_remote_tensors", false);
  std::vector<at::Tensor> tensors;
  for (Rank rank = 0; rank < memory->get_world_size(); ++rank) {
    std::byte* const bytes = memory->part(rank) + x.storage_offset() * static_cast<std::int64_t>(x.element_size());
    tensors.push_back(at::from_blob(
        bytes, x.sizes(), x.strides(), [memory](void*) {}, x.options()));
  }
  return tensors;
}

// ---- 32-bit words of any tensor

std::uint32_t* wordsFor(const char* name, const at::Tensor& input, std::int64_t offset, std::int64_t value,
                        std::int64_t count) {
  // RuntimeErrors, as programs expect from these two ops.
  TORCH_CHECK(input.dim() == 1 && input.is_contiguous() && input.scalar_type() == c10::ScalarType::UInt32, name,
              ": input must be a flat, contiguous uint32 tensor");
  TORCH_CHECK(offset >= 0, name, ": offset must be greater than or equal to 0, not ", offset);
  TORCH_CHECK(count > 0, name, ": count must be a positive integer, not ", count);
  TORCH_CHECK(value >= 0 && value <= std::int64_t{0xffffffff}, name,
              ": val must be in the range of [0, 4294967295] (uint32_t), not ", value);
  TORCH_CHECK(offset <= input.numel() && count <= input.numel() - offset, name, ": offset + count (", offset, " + ",
              count, ") exceeded the numel of the input (", input.numel(), ")");
  requireStorage(input, name);
  return static_cast<std::uint32_t*>(input.data_ptr()) + offset;
}

at::Tensor streamWriteValue32(at::Tensor& input, std::int64_t offset, std::int64_t value) {
  std::atomic_ref(*wordsFor("stream_write_value32_", input, offset, value, 1)).store(static_cast<std::uint32_t>(value));
  return input;
}

at::Tensor memset32(at::Tensor& input, std::int64_t offset, std::int64_t value, std::int64_t count) {
  std::fill_n(wordsFor("memset32_", input, offset, value, count), count, static_cast<std::uint32_t>(value));
  return input;
}

}  // namespace

void implementSymmOps(torch::Library& library) {
  library.impl("one_shot_all_reduce", &KernelForPython<&oneShotAllReduce>::call);
  library.impl("one_shot_all_reduce_out", &KernelForPython<&oneShotAllReduceOut>::call);
  library.impl("one_shot_all_reduce_copy", &KernelForPython<&oneShotAllReduceCopy>::call);
  library.impl("one_shot_all_reduce_copy_out", &KernelForPython<&oneShotAllReduceCopyOut>::call);
  library.impl("two_shot_all_reduce_", &KernelForPython<&twoShotAllReduce>::call);
  library.impl("two_shot_all_reduce_out", &KernelForPython<&twoShotAllReduceOut>::call);
  library.impl("multimem_all_reduce_", &KernelForPython<&multimemAllReduce>::call);
  library.impl("multimem_one_shot_all_reduce", &KernelForPython<&multimemOneShotAllReduce>::call);
  library.impl("multimem_one_shot_all_reduce_out", &KernelForPython<&multimemOneShotAllReduceOut>::call);
  library.impl("multimem_one_shot_reduce_out", &KernelForPython<&multimemOneShotReduceOut>::call);
  library.impl("reduce_scatter_out", &KernelForPython<&reduceScatterOut>::call);
  library.impl("multimem_all_gather_out", &KernelForPython<&multimemAllGatherOut>::call);
  library.impl("get_remote_tensors", &KernelForPython<&remoteTensors>::call);
  library.impl("stream_write_value32_", &KernelForPython<&streamWriteValue32>::call);
  library.impl("memset32_", &KernelForPython<&memset32>::call);
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
