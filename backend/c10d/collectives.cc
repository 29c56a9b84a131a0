// ProcessGroupShardwire's collectives that move without computing. All are written alike: take the tensors of the call
// out of c10d's lists, get the host's view of each from HostTensors, check shapes and dtypes, and start() one operation
// of the communicator.
#include <fmt/ranges.h>

#include "backend/c10d/issue.h"
#include "backend/c10d/tensor_list_memory.h"
#include "backend/communicator/list_memory.h"

namespace shardwire {

namespace {

Rank groupRootOf(std::int64_t rank, std::int64_t rootTensor, int size, const char* name) {
  if (rank < 0 || rank >= size) {
    refuseCall(StatusCode::kInvalidArgument, "{}: root rank {} is not in the group of {} ranks", name, rank, size);
  }
  if (rootTensor != 0) {
    refuseCall(StatusCode::kInvalidArgument, "{}: root tensor index {}; each rank gives one tensor", name, rootTensor);
  }
  return static_cast<Rank>(rank);
}

// One view per rank, each with the shape of the tensor on the other side.
std::vector<TensorView> viewsLike(const std::vector<at::Tensor>& tensors, const TensorView& model, const char* name,
                                  const char* which) {
  std::vector<TensorView> views;
  views.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    views.push_back(viewAs(tensors[i], model.shape, fmt::format("{}: {}[{}]", name, which, i)));
    checkSameDType(model, views.back(), name);
  }
  return views;
}

// The parts of one rank have one size, and so must have one shape: gloo refuses other lists.
void checkOneShape(const std::vector<at::Tensor>& list, const char* name) {
  for (std::size_t i = 1; i < list.size(); ++i) {
    if (list[i].sizes() != list[0].sizes()) {
      refuseCall(StatusCode::kInvalidArgument,
                 "{}: output[0] has shape [{}] but output[{}] [{}], which are as many elements; outputs of one size "
                 "must have one shape",
                 name, fmt::join(list[0].sizes(), ", "), i, fmt::join(list[i].sizes(), ", "));
    }
  }
}

// The communicator sees only copies of device tensors, and copies never share memory.
void refuseSharedOnDevices(const HostTensors& host, const std::vector<at::Tensor>& outputs, const char* name) {
  if (host.staged() != nullptr) {
    internal::refuseSharedOutputs(name, outputs);
  }
}

}  // namespace

TorchWork ProcessGroupShardwire::broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options) {
  Call call{OpType::BROADCAST, "broadcast", "broadcast"};
  const at::Tensor& tensor = onlyTensor(tensors, call.name);
  const Rank root = groupRootOf(options.rootRank, options.rootTensor, getSize(), call.name);
  call.writes = root != getRank();
  HostTensors host(stager_);
  const TensorView view =
      viewOf(root == getRank() ? host.in(tensor, "broadcast: tensor") : host.out(tensor, "broadcast: tensor"),
             "broadcast: tensor");
  return start(call, {{tensor}, {}}, host, options.timeout, calling(&Communicator::broadcast, view, root));
}

TorchWork ProcessGroupShardwire::allgather(TensorLists& outputs, Tensors& inputs,
                                           const ::c10d::AllgatherOptions& options) {
  const Call call{OpType::ALLGATHER, "all_gather", "all_gather"};
  onlyTensor(inputs, call.name);
  const Tensors& list = onlyList(outputs, sizeAsCount(), call.name, "output");
  if (internal::areUneven(list)) {
    return allgatherUneven(call, list, inputs.front(), options.timeout);
  }
  checkOneShape(list, call.name);
  HostTensors host(stager_);
  const TensorView input = viewOf(host.in(inputs.front(), "all_gather: input"), "all_gather: input");
  const auto views = viewsLike(host.out(list, "all_gather: output"), input, call.name, "output");
  refuseSharedOnDevices(host, list, call.name);
  return start(call, tensorsOf(list, inputs), host, options.timeout, calling(&Communicator::allGather, input, views));
}

// Outputs of several sizes: every rank knows all sizes from its list, so each rank's tensor is a broadcast of its own.
TorchWork ProcessGroupShardwire::allgatherUneven(Call call, const Tensors& list, const at::Tensor& input,
                                                 Milliseconds timeout) {
  const auto own = static_cast<std::size_t>(getRank());
  HostTensors host(stager_);
  Tensors seen;
  for (std::size_t i = 0; i < list.size(); ++i) {
    seen.push_back(i == own ? host.inOut(list[i], "all_gather: output") : host.out(list[i], "all_gather: output"));
  }
  // Only looked at here: this rank's own output takes its place.
  const at::Tensor inputSeen = HostTensors(stager_).in(input, "all_gather: input");
  const TensorView inputView = viewOf(inputSeen, "all_gather: input");
  const std::vector<TensorView> views = viewsOf(seen, "all_gather: output");
  for (const TensorView& view : views) {
    checkSameDType(view, inputView, call.name);
  }
  viewAs(seen[own], inputView.shape, fmt::format("all_gather: output[{}], this rank's own,", own));
  internal::ListMemory memory(call.name);
  memory.reads(input, own, "input");
  for (std::size_t i = 0; i < list.size(); ++i) {
    memory.writes(list[i], i, "output", i);
  }
  memory.refuse();
  internal::copyInto(list[own].view_as(input), input);
  return start(call, tensorsOf(list, {}), host, timeout, [&](Communicator& communicator, CallOptions callOptions) {
    return internal::issueEach(views.size(), [&](std::size_t i) {
      return communicator.broadcast(views[i], static_cast<Rank>(i), callOptions);
    });
  });
}

TorchWork ProcessGroupShardwire::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const ::c10d::AllgatherOptions& options) {
  const Call call{OpType::_ALLGATHER_BASE, "all_gather_into_tensor", "all_gather_into_tensor"};
  HostTensors host(stager_);
  const TensorView inputView = viewOf(host.in(input, "all_gather_into_tensor: input"), "all_gather_into_tensor: input");
  const at::Tensor whole = host.out(output, "all_gather_into_tensor: output");
  const auto pieces = equalPieces(whole, getSize(), inputView.shape, "all_gather_into_tensor: output");
  checkSameDType(pieces.front(), inputView, call.name);
  return start(call, {{output}, {input}}, host, options.timeout, calling(&Communicator::allGather, inputView, pieces));
}

TorchWork ProcessGroupShardwire::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                     const ::c10d::AllgatherOptions& options) {
  const Call call{OpType::ALLGATHER_COALESCED, "all_gather_coalesced", "all_gather"};
  checkPairs(outputs.size(), sizeAsCount(), call.name);
  HostTensors host(stager_);
  std::vector<TensorView> inputViews =
      viewsOf(host.in(inputs, "all_gather_coalesced: input"), "all_gather_coalesced: input");
  std::vector<std::vector<TensorView>> outputViews(inputs.size());
  OperationTensors tensors = tensorsOf({}, inputs);
  checkOneDType(inputViews, call.name, "input");
  internal::ListMemory memory(call.name);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    memory.reads(inputs[i], i, "input", i);
  }
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    const Tensors& ofRank = outputs[r];
    checkPairs(ofRank.size(), inputs.size(), call.name);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      outputViews[i].push_back(viewAs(host.out(ofRank[i], "all_gather_coalesced: output"), inputViews[i].shape,
                                      "all_gather_coalesced: output"));
      checkSameDType(outputViews[i].back(), inputViews[i], call.name);
      tensors.outputs.push_back(ofRank[i]);
      memory.writes(ofRank[i], i, "output", r, i);
    }
  }
  memory.refuse();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    internal::refuseSharedWithin({call.name, "input", "output"}, i, getRank(), {&inputViews[i], 1}, outputViews[i]);
  }
  return start(call, std::move(tensors), host, options.timeout,
               [&](Communicator& communicator, CallOptions callOptions) {
                 return internal::issueEach(inputs.size(), [&](std::size_t i) {
                   return communicator.allGather(inputViews[i], outputViews[i], callOptions);
                 });
               });
}

TorchWork ProcessGroupShardwire::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                 const ::c10d::AllgatherOptions& options) {
  const Call call{OpType::_ALLGATHER_BASE, "all_gather_into_tensor_coalesced", "all_gather_into_tensor_coalesced"};
  checkPairs(outputs.size(), inputs.size(), call.name);
  HostTensors host(stager_);
  const Tensors wholes = host.out(outputs, "all_gather_into_tensor_coalesced: output");
  const std::vector<TensorView> inputViews =
      viewsOf(host.in(inputs, "all_gather_into_tensor_coalesced: input"), "all_gather_into_tensor_coalesced: input");
  std::vector<std::vector<TensorView>> outputViews;
  internal::ListMemory memory(call.name);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    outputViews.push_back(
        equalPieces(wholes[i], getSize(), inputViews[i].shape, "all_gather_into_tensor_coalesced: output"));
    checkSameDType(outputViews[i].front(), inputViews[i], call.name);
    memory.reads(inputs[i], i, "input", i);
    memory.writes(outputs[i], i, "output", i);
    internal::refuseSharedWithin({call.name, "input", "output"}, i, getRank(), {&inputViews[i], 1}, outputViews[i]);
  }
  memory.refuse();
  return start(call, tensorsOf(outputs, inputs), host, options.timeout,
               [&](Communicator& communicator, CallOptions callOptions) {
                 return internal::issueEach(inputs.size(), [&](std::size_t i) {
                   return communicator.allGather(inputViews[i], outputViews[i], callOptions);
                 });
               });
}

TorchWork ProcessGroupShardwire::gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options) {
  const Call call{OpType::GATHER, "gather", "gather"};
  onlyTensor(inputs, call.name);
  const Rank root = groupRootOf(options.rootRank, 0, getSize(), call.name);
  if (root != getRank() && !outputs.empty() && !outputs.front().empty()) {
    refuseCall(StatusCode::kInvalidArgument, "gather: only the root, rank {}, gives output tensors", root);
  }
  const Tensors list = root == getRank() ? onlyList(outputs, sizeAsCount(), call.name, "output") : Tensors();
  HostTensors host(stager_);
  const TensorView input = viewOf(host.in(inputs.front(), "gather: input"), "gather: input");
  const auto views = viewsLike(host.out(list, "gather: output"), input, call.name, "output");
  refuseSharedOnDevices(host, list, call.name);
  return start(call, tensorsOf(list, inputs), host, options.timeout,
               calling(&Communicator::gather, input, views, root));
}

TorchWork ProcessGroupShardwire::scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options) {
  const Call call{OpType::SCATTER, "scatter", "scatter"};
  onlyTensor(outputs, call.name);
  const Rank root = groupRootOf(options.rootRank, 0, getSize(), call.name);
  if (root != getRank() && !inputs.empty() && !inputs.front().empty()) {
    refuseCall(StatusCode::kInvalidArgument, "scatter: only the root, rank {}, gives input tensors", root);
  }
  const Tensors list = root == getRank() ? onlyList(inputs, sizeAsCount(), call.name, "input") : Tensors();
  HostTensors host(stager_);
  const TensorView output = viewOf(host.out(outputs.front(), "scatter: output"), "scatter: output");
  const auto views = viewsLike(host.in(list, "scatter: input"), output, call.name, "input");
  return start(call, tensorsOf(outputs, list), host, options.timeout,
               calling(&Communicator::scatter, output, views, root));
}

TorchWork ProcessGroupShardwire::alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options) {
  const Call call{OpType::ALLTOALL, "all_to_all", "all_to_all"};
  checkPairs(outputs.size(), sizeAsCount(), call.name);
  checkPairs(inputs.size(), sizeAsCount(), call.name);
  HostTensors host(stager_);
  const auto outputViews = viewsOf(host.out(outputs, "all_to_all: output"), "all_to_all: output");
  const auto inputViews = viewsOf(host.in(inputs, "all_to_all: input"), "all_to_all: input");
  for (std::size_t i = 0; i < outputViews.size(); ++i) {
    checkSameDType(outputViews[i], inputViews[i], call.name);
  }
  refuseSharedOnDevices(host, outputs, call.name);
  return start(call, tensorsOf(outputs, inputs), host, options.timeout,
               calling(&Communicator::allToAll, outputViews, inputViews));
}

TorchWork ProcessGroupShardwire::alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>& outputSplits,
                                               std::vector<std::int64_t>& inputSplits,
                                               const ::c10d::AllToAllOptions& options) {
  const Call call{OpType::ALLTOALL_BASE, "all_to_all_single", "all_to_all"};
  HostTensors host(stager_);
  const auto outputViews = internal::rowPieces(host.out(output, "all_to_all_single: output"), getSize(), outputSplits,
                                               "all_to_all_single: output");
  const auto inputViews = internal::rowPieces(host.in(input, "all_to_all_single: input"), getSize(), inputSplits,
                                              "all_to_all_single: input");
  checkSameDType(outputViews.front(), inputViews.front(), call.name);
  return start(call, {{output}, {input}}, host, options.timeout,
               calling(&Communicator::allToAll, outputViews, inputViews));
}

}  // namespace shardwire
