// The collectives of a communicator: check the tensors, flatten them, hand the stages to the engine.
#include <fmt/format.h>

#include "backend/communicator_impl.h"
#include "backend/exec/run.h"
#include "backend/flat_tensor.h"

namespace shardwire::internal {

namespace {

std::span<const TensorView> one(const TensorView& view) {
  return {&view, 1};
}

constexpr std::span<const TensorView> kNone{};

}  // namespace

std::shared_ptr<void> CommunicatorImpl::Call::keepAlive(std::shared_ptr<void> scratch) const {
  if (flat.memory() == nullptr && scratch == nullptr) {
    return options.keepAlive;
  }
  return std::make_shared<std::array<std::shared_ptr<void>, 3>>(std::array{options.keepAlive, flat.memory(), std::move(scratch)});
}

Result<WorkPtr> CommunicatorImpl::start(Call& call, const CollectiveCall& collective, std::span<const TensorView> inputs,
                                        std::span<const TensorView> outputs) {
  Result<Runs> prepared = programs_.prepare(collective, inputs, outputs);
  if (!prepared.isOk()) {
    return prepared.status();
  }
  Runs& runs = *prepared;
  for (const auto& activity : runs.span()) {
    activity->timeout = call.options.timeout.value_or(Duration{0});
    if (call.options.staging != nullptr) {
      static_cast<Run&>(*activity).stage(call.options.staging);
      runs.spin = Duration::zero();  // the inputs are still to come
    }
  }
  engine_->attach(call.options.staging);
  const std::shared_ptr<Activity>& last = runs.activities[runs.count - 1];
  last->keepAlive = call.keepAlive(std::move(runs.scratch));
  last->epilogue = call.flat.finish();
  SW_RETURN_IF_ERROR(engine_->submit(runs.span(), runs.spin));
  return WorkPtr(last);
}

Result<WorkPtr> CommunicatorImpl::barrier(CallOptions options) {
  Call call{std::move(options), {}};
  return start(call, {.kind = Collective::kBarrier, .dtype = DType::kUInt8}, kNone, kNone);
}

Result<WorkPtr> CommunicatorImpl::broadcast(TensorView tensor, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "broadcast"));
  Call call{std::move(options), {}};
  const bool isRoot = rank() == root;
  Result<TensorView> flat = isRoot ? call.flat.input(tensor) : call.flat.output(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  const CollectiveCall collective{Collective::kBroadcast, tensor.dtype, ReduceOp::kNone, root, flat->shape[0]};
  return start(call, collective, isRoot ? one(*flat) : kNone, isRoot ? kNone : one(*flat));
}

Result<WorkPtr> CommunicatorImpl::allReduce(TensorView tensor, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkReduction(tensor.dtype, op, "all_reduce"));
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.inOut(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  return start(call, {Collective::kAllReduce, tensor.dtype, op, 0, flat->shape[0]}, one(*flat), one(*flat));
}

Result<WorkPtr> CommunicatorImpl::reduce(TensorView tensor, Rank root, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "reduce"));
  SW_RETURN_IF_ERROR(checkReduction(tensor.dtype, op, "reduce"));
  Call call{std::move(options), {}};
  const bool isRoot = rank() == root;
  Result<TensorView> flat = isRoot ? call.flat.inOut(tensor) : call.flat.input(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  return start(call, {Collective::kReduce, tensor.dtype, op, root, flat->shape[0]}, one(*flat), isRoot ? one(*flat) : kNone);
}

Result<WorkPtr> CommunicatorImpl::startGathering(CollectiveCall collective, TensorView input, std::span<const TensorView> outputs,
                                                 CallOptions options) {
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.input(input);
  SW_RETURN_IF_ERROR(flat.status());
  const Result<std::vector<TensorView>> flatOutputs = call.flat.outputs(outputs);
  SW_RETURN_IF_ERROR(flatOutputs.status());
  collective.numElems = flat->shape[0];
  return start(call, collective, one(*flat), *flatOutputs);
}

Result<WorkPtr> CommunicatorImpl::startScattering(CollectiveCall collective, TensorView output, std::span<const TensorView> inputs,
                                                  CallOptions options) {
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.output(output);
  SW_RETURN_IF_ERROR(flat.status());
  const Result<std::vector<TensorView>> flatInputs = call.flat.inputs(inputs);
  SW_RETURN_IF_ERROR(flatInputs.status());
  collective.numElems = flat->shape[0];
  return start(call, collective, *flatInputs, one(*flat));
}

Result<WorkPtr> CommunicatorImpl::allGather(TensorView input, std::span<const TensorView> outputs, CallOptions options) {
  SW_RETURN_IF_ERROR(checkList(outputs, input.dtype, numElements(input.shape), "all_gather", "outputs"));
  return startGathering({.kind = Collective::kAllGather, .dtype = input.dtype}, input, outputs, std::move(options));
}

Result<WorkPtr> CommunicatorImpl::gather(TensorView input, std::span<const TensorView> outputs, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRootList(outputs, input, root, "gather", "outputs"));
  return startGathering({.kind = Collective::kGather, .dtype = input.dtype, .root = root}, input, outputs, std::move(options));
}

Result<WorkPtr> CommunicatorImpl::scatter(TensorView output, std::span<const TensorView> inputs, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRootList(inputs, output, root, "scatter", "inputs"));
  return startScattering({.kind = Collective::kScatter, .dtype = output.dtype, .root = root}, output, inputs, std::move(options));
}

Result<WorkPtr> CommunicatorImpl::reduceScatter(TensorView output, std::span<const TensorView> inputs, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkReduction(output.dtype, op, "reduce_scatter"));
  SW_RETURN_IF_ERROR(checkList(inputs, output.dtype, numElements(output.shape), "reduce_scatter", "inputs"));
  return startScattering({.kind = Collective::kReduceScatter, .dtype = output.dtype, .op = op}, output, inputs, std::move(options));
}

Result<WorkPtr> CommunicatorImpl::allToAll(std::span<const TensorView> outputs, std::span<const TensorView> inputs, CallOptions options) {
  const DType dtype = inputs.empty() ? DType::kFloat32 : inputs[0].dtype;
  SW_RETURN_IF_ERROR(checkList(inputs, dtype, -1, "all_to_all", "inputs"));
  SW_RETURN_IF_ERROR(checkList(outputs, dtype, -1, "all_to_all", "outputs"));
  Call call{std::move(options), {}};
  const Result<std::vector<TensorView>> flatInputs = call.flat.inputs(inputs);
  const Result<std::vector<TensorView>> flatOutputs = call.flat.outputs(outputs);
  if (!flatInputs.isOk() || !flatOutputs.isOk()) {
    return flatInputs.isOk() ? flatOutputs.status() : flatInputs.status();
  }
  std::vector<std::int64_t> inputElems;
  std::vector<std::int64_t> outputElems;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    inputElems.push_back((*flatInputs)[r].shape[0]);
    outputElems.push_back((*flatOutputs)[r].shape[0]);
  }
  if (const auto self = static_cast<std::size_t>(rank()); inputElems[self] != outputElems[self]) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("all_to_all: rank {} sends itself {} elements and expects {}", rank(), inputElems[self], outputElems[self]));
  }
  const CollectiveCall collective{.kind = Collective::kAllToAll, .dtype = dtype, .inputElems = inputElems, .outputElems = outputElems};
  return start(call, collective, *flatInputs, *flatOutputs);
}

// ---- checks

Status CommunicatorImpl::checkRoot(Rank root, const char* name) const {
  if (root < 0 || root >= worldSize()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: root {} is not a rank of this group of {}", name, root, worldSize())};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkPeer(Rank peer, const char* name) const {
  if (peer < 0 || peer >= worldSize()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: {} is not a rank of this group of {}", name, peer, worldSize())};
  }
  if (peer == rank()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} cannot exchange a message with itself", name, peer)};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkReduction(DType dtype, ReduceOp op, const char* name) const {
  if (op == ReduceOp::kNone || !supportsReduction(dtype, op)) {
    return {StatusCode::kTypeError, fmt::format("{}: {} is not defined on {}", name, reduceOpName(op), dtypeName(dtype))};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkRootList(std::span<const TensorView> tensors, const TensorView& like, Rank root, const char* name,
                                       const char* list) const {
  SW_RETURN_IF_ERROR(checkRoot(root, name));
  if (rank() == root) {
    return checkList(tensors, like.dtype, numElements(like.shape), name, list);
  }
  if (!tensors.empty()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} is not the root ({}) and must give no {}", name, rank(), root, list)};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkList(std::span<const TensorView> tensors, DType dtype, std::int64_t numElems, const char* name,
                                   const char* list) const {
  if (tensors.size() != static_cast<std::size_t>(worldSize())) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: {} must hold one tensor per rank ({}), not {}", name, list, worldSize(), tensors.size())};
  }
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    if (tensors[r].dtype != dtype) {
      return {StatusCode::kTypeError,
              fmt::format("{}: {}[{}] is {}, the others are {}", name, list, r, dtypeName(tensors[r].dtype), dtypeName(dtype))};
    }
    if (numElems >= 0 && numElements(tensors[r].shape) != numElems) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{}: {}[{}] has {} elements, {} are needed", name, list, r, numElements(tensors[r].shape), numElems)};
    }
  }
  return Status::ok();
}

}  // namespace shardwire::internal
