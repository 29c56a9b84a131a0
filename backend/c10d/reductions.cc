// ProcessGroupShardwire's collectives that compute, written like the collectives of collectives.cc. PREMUL_SUM
// multiplies first, into a new tensor unless the call owns its tensor already.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>

#include "backend/c10d/issue.h"
#include "backend/c10d/tensor_list_memory.h"
#include "backend/communicator/list_memory.h"

namespace shardwire {

namespace {

// c10d's operator, split into our operator and, for PREMUL_SUM, the factor by which each rank multiplies first.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  const ::c10d::NCCLPreMulSumSupplement* premultiplier = nullptr;

  bool scales() const { return premultiplier != nullptr; }
  at::Tensor scaled(const at::Tensor& tensor) const {
    internal::requireStorage(tensor, "the tensor");  // otherwise torch's own arithmetic would read past the storage
    const c10::AutoGradMode noGradients(false);
    const at::Tensor factor = SW_TORCH_SUPPLEMENT_FACTOR(*premultiplier);
    return factor.defined() ? tensor.mul(factor).to(tensor.scalar_type()) : tensor.mul(premultiplier->double_factor);
  }
  // For operations that change the tensor. The last step before the start: a refused call leaves the tensor as it is,
  // also where the group has failed.
  void scaleInPlace(at::Tensor& tensor, const ProcessGroupShardwire& group) const {
    if (scales()) {
      internal::throwUnlessOk(group.communicator()->status());
      internal::copyInto(tensor, scaled(tensor));
    }
  }
};

// Indexed by ReduceOp.
using Torchs = ::c10d::ReduceOp;
constexpr std::array<Torchs::RedOpType, kNumReduceOps> kTorchReductions = {Torchs::UNUSED, Torchs::SUM, Torchs::PRODUCT,
                                                                           Torchs::MIN,    Torchs::MAX, Torchs::AVG,
                                                                           Torchs::BAND,   Torchs::BOR, Torchs::BXOR};

Reduction reductionOf(const ::c10d::ReduceOp& op, const char* name) {
  const auto found = std::find(kTorchReductions.begin() + 1, kTorchReductions.end(), op.op_);
  if (found != kTorchReductions.end()) {
    return {static_cast<ReduceOp>(found - kTorchReductions.begin())};
  }
  if (op.op_ == ::c10d::ReduceOp::PREMUL_SUM && op.supplement_) {
    return {ReduceOp::kSum, static_cast<const ::c10d::NCCLPreMulSumSupplement*>(op.supplement_.get())};
  }
  refuseCall(StatusCode::kInvalidArgument, "{}: reduce operation number {} is not known here", name,
             static_cast<int>(op.op_));
}

void checkComputable(DType dtype, const Reduction& reduction, const char* name) {
  if (!supportsReduction(dtype, reduction.op)) {
    refuseCall(StatusCode::kTypeError, "{}: operation '{}' is not defined for dtype {}", name,
               reduceOpName(reduction.op), dtypeName(dtype));
  }
  const bool fractional = dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 ||
                          dtype == DType::kFloat64 || dtype == DType::kComplex64 || dtype == DType::kComplex128;
  if (reduction.scales() && !fractional) {
    refuseCall(StatusCode::kTypeError, "{}: PREMUL_SUM is defined for floating point and complex tensors, not for {}",
               name, dtypeName(dtype));
  }
}

Rank reduceRootOf(const ::c10d::ReduceOptions& options, int size) {
  if (options.rootRank < 0 || options.rootRank >= size || options.rootTensor != 0) {
    refuseCall(StatusCode::kInvalidArgument, "reduce: root rank {} (tensor {}) is not in the group of {} ranks",
               options.rootRank, options.rootTensor, size);
  }
  return static_cast<Rank>(options.rootRank);
}
}  // namespace

::c10d::ReduceOp internal::torchReduction(ReduceOp op) {
  return kTorchReductions.at(static_cast<std::size_t>(op));
}

TorchWork ProcessGroupShardwire::allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options) {
  const Call call{OpType::ALLREDUCE, "all_reduce", "all_reduce"};
  at::Tensor& tensor = onlyTensor(tensors, call.name);
  if (tensor.is_sparse()) {
    return allreduce_sparse(tensors, options);
  }
  HostTensors host(stager_);
  const TensorView view = viewOf(host.inOut(tensor, "all_reduce: tensor"), "all_reduce: tensor");
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  checkComputable(view.dtype, reduction, call.name);
  reduction.scaleInPlace(tensor, *this);
  return start(call, {{tensor}, {}}, host, options.timeout, calling(&Communicator::allReduce, view, reduction.op));
}

TorchWork ProcessGroupShardwire::allreduce_coalesced(Tensors& tensors,
                                                     const ::c10d::AllreduceCoalescedOptions& options) {
  const Call call{OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", "all_reduce"};
  HostTensors host(stager_);
  Tensors seen = host.inOut(tensors, "all_reduce_coalesced: tensors");
  std::vector<TensorView> views = viewsOf(seen, "all_reduce_coalesced: tensors");
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  for (const TensorView& view : views) {
    checkComputable(view.dtype, reduction, call.name);
  }
  checkOneDType(views, call.name, "tensors");
  const std::vector<std::size_t> first = internal::findRepeated(call.name, tensors);
  OperationTensors kept = tensorsOf(tensors, {});
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (first[i] == i) {
      reduction.scaleInPlace(tensors[i], *this);
    } else if (tensors[i].device().is_cpu()) {
      // The tensor itself is reduced once. The other ranks count this occurrence as well, so a temporary copy takes
      // part, of the values at the call. (Tensors on devices all have copies, which are copied back at the end.)
      const c10::AutoGradMode noGradients(false);
      seen[i] = tensors[i].clone();
      views[i] = viewOf(seen[i], "all_reduce_coalesced: tensors");
      kept.inputs.push_back(seen[i]);
    }
  }
  return start(call, std::move(kept), host, options.timeout, [&](Communicator& communicator, CallOptions callOptions) {
    return internal::issueEach(
        views.size(), [&](std::size_t i) { return communicator.allReduce(views[i], reduction.op, callOptions); });
  });
}

TorchWork ProcessGroupShardwire::reduce(Tensors& tensors, const ::c10d::ReduceOptions& options) {
  Call call{OpType::REDUCE, "reduce", "reduce"};
  at::Tensor tensor = onlyTensor(tensors, call.name);
  const Rank root = reduceRootOf(options, getSize());
  call.writes = root == getRank();
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  checkComputable(internal::dtypeOf(tensor.scalar_type()), reduction, call.name);
  if (reduction.scales() && root != getRank()) {
    tensor = reduction.scaled(tensor);  // the caller's tensor stays unchanged on all ranks but root
  }
  HostTensors host(stager_);
  const TensorView view = viewOf(
      root == getRank() ? host.inOut(tensor, "reduce: tensor") : host.in(tensor, "reduce: tensor"), "reduce: tensor");
  if (root == getRank()) {
    reduction.scaleInPlace(tensor, *this);
  }
  return start(call, {{tensor}, {}}, host, options.timeout, calling(&Communicator::reduce, view, root, reduction.op));
}

TorchWork ProcessGroupShardwire::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                const ::c10d::ReduceScatterOptions& options) {
  const Call call{OpType::REDUCE_SCATTER, "reduce_scatter", "reduce_scatter"};
  const at::Tensor& outputTensor = onlyTensor(outputs, call.name);
  Tensors list = onlyList(inputs, sizeAsCount(), call.name, "input");
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  checkComputable(internal::dtypeOf(outputTensor.scalar_type()), reduction, call.name);
  if (reduction.scales()) {
    std::ranges::transform(list, list.begin(), [&](const at::Tensor& tensor) { return reduction.scaled(tensor); });
  }
  if (internal::areUneven(list)) {
    return reduceScatterUneven(call, outputs.front(), list, reduction.op, options.timeout);
  }
  HostTensors host(stager_);
  const TensorView output = viewOf(host.out(outputTensor, "reduce_scatter: output"), "reduce_scatter: output");
  const Tensors seen = host.in(list, "reduce_scatter: input");
  std::vector<TensorView> views = viewsOf(seen, "reduce_scatter: input");
  for (const TensorView& view : views) {
    checkSameDType(output, view, call.name);
  }
  const auto own = static_cast<std::size_t>(getRank());
  views[own] = internal::viewAs(seen[own], output.shape, "reduce_scatter: this rank's input");
  return start(call, tensorsOf(outputs, list), host, options.timeout,
               calling(&Communicator::reduceScatter, output, views, reduction.op));
}

// Pieces of several sizes: each piece is a reduction of its own, to the rank of the piece. On this root the reduction
// runs in the output, in place.
TorchWork ProcessGroupShardwire::reduceScatterUneven(Call call, const at::Tensor& output, const Tensors& list,
                                                     ReduceOp op, Milliseconds timeout) {
  const auto own = static_cast<std::size_t>(getRank());
  HostTensors host(stager_);
  const Tensors seen = host.in(list, "reduce_scatter: input");
  std::vector<TensorView> views = viewsOf(seen, "reduce_scatter: input");
  const TensorView outputView =
      internal::viewAs(host.inOut(output, "reduce_scatter: output"), views[own].shape, "reduce_scatter: output");
  for (const TensorView& view : views) {
    checkSameDType(outputView, view, call.name);
  }
  internal::ListMemory memory(call.name);
  for (std::size_t i = 0; i < list.size(); ++i) {
    memory.reads(list[i], i, "input", i);
  }
  memory.writes(output, own, "output");
  memory.refuse();
  internal::copyInto(output.view_as(list[own]), list[own]);
  views[own] = outputView;
  return start(call, tensorsOf({&output, 1}, list), host, timeout,
               [&](Communicator& communicator, CallOptions callOptions) {
                 return internal::issueEach(views.size(), [&](std::size_t i) {
                   return communicator.reduce(views[i], static_cast<Rank>(i), op, callOptions);
                 });
               });
}

TorchWork ProcessGroupShardwire::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const ::c10d::ReduceScatterOptions& options) {
  const Call call{OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor", "reduce_scatter_tensor"};
  HostTensors host(stager_);
  const TensorView outputView =
      viewOf(host.out(output, "reduce_scatter_tensor: output"), "reduce_scatter_tensor: output");
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  checkComputable(outputView.dtype, reduction, call.name);
  const at::Tensor source = reduction.scales() ? reduction.scaled(input) : input;
  const auto pieces = equalPieces(host.in(source, "reduce_scatter_tensor: input"), getSize(), outputView.shape,
                                  "reduce_scatter_tensor: input");
  checkSameDType(outputView, pieces.front(), call.name);
  return start(call, {{output}, {source}}, host, options.timeout,
               calling(&Communicator::reduceScatter, outputView, pieces, reduction.op));
}

TorchWork ProcessGroupShardwire::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const ::c10d::ReduceScatterOptions& options) {
  const Call call{OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor_coalesced", "reduce_scatter_tensor_coalesced"};
  checkPairs(outputs.size(), inputs.size(), call.name);
  const Reduction reduction = reductionOf(options.reduceOp, call.name);
  HostTensors host(stager_);
  const std::vector<TensorView> outputViews =
      viewsOf(host.out(outputs, "reduce_scatter_tensor_coalesced: output"), "reduce_scatter_tensor_coalesced: output");
  Tensors sources = inputs;
  std::vector<std::vector<TensorView>> inputViews;
  internal::ListMemory memory(call.name);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    checkComputable(outputViews[i].dtype, reduction, call.name);
    if (reduction.scales()) {
      sources[i] = reduction.scaled(inputs[i]);
    }
    const at::Tensor whole = host.in(sources[i], "reduce_scatter_tensor_coalesced: input");
    inputViews.push_back(equalPieces(whole, getSize(), outputViews[i].shape, "reduce_scatter_tensor_coalesced: input"));
    checkSameDType(outputViews[i], inputViews[i].front(), call.name);
    memory.reads(sources[i], i, "input", i);
    memory.writes(outputs[i], i, "output", i);
    internal::refuseSharedWithin({call.name, "input", "output"}, i, getRank(), inputViews[i], {&outputViews[i], 1});
  }
  memory.refuse();
  return start(call, tensorsOf(outputs, sources), host, options.timeout,
               [&](Communicator& communicator, CallOptions callOptions) {
                 return internal::issueEach(outputs.size(), [&](std::size_t i) {
                   return communicator.reduceScatter(outputViews[i], inputViews[i], reduction.op, callOptions);
                 });
               });
}

}  // namespace shardwire
