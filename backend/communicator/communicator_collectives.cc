// Each collective checks its tensors, makes flat views (copies of tensors that are not contiguous), and describes its
// call as a CollectiveCall. start() does the rest for all collectives: find earlier operations over the same memory,
// take the runs of the call's stages from the program cache, hold the runs back until the earlier operations are over,
// and hand the runs to the engine.
#include <fmt/format.h>

#include <array>
#include <memory_resource>
#include <optional>

#include "backend/communicator/communicator_impl.h"
#include "backend/communicator/flat_tensor.h"
#include "backend/communicator/list_memory.h"
#include "backend/exec/argument_check.h"
#include "backend/exec/over_in_call.h"
#include "backend/exec/run.h"

namespace shardwire::internal {

namespace {

std::span<const TensorView> one(const TensorView& view) {
  return {&view, 1};
}

constexpr std::span<const TensorView> kNone{};

// The form of such calls in torch's own flight recorder; torch's tools compare the sizes.
CallRecord::Lists listsOf(Collective kind) {
  switch (kind) {
    case Collective::kAllToAll:
      return CallRecord::Lists::kJoined;
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kReduceScatter:
      return CallRecord::Lists::kStacked;
    default:
      return CallRecord::Lists::kEach;
  }
}

}  // namespace

std::shared_ptr<void> CommunicatorImpl::Call::keepAlive(std::shared_ptr<void> scratch) const {
  if (!flat.hasCopies() && scratch == nullptr) {
    return options.keepAlive;
  }
  return std::make_shared<std::array<std::shared_ptr<void>, 3>>(
      std::array{options.keepAlive, flat.memory(), std::move(scratch)});
}

// The memory in use until the operation is done. Tensors with copies are read at the start, and written, if at all, at
// the end.
std::unique_ptr<MemoryUse> CommunicatorImpl::Call::newUse(InFlight& inFlight, std::span<const TensorView> inputs,
                                                          std::span<const TensorView> outputs) const {
  std::unique_ptr<MemoryUse> use = inFlight.newUse();
  use->reads(inputs);
  use->writes(outputs);
  flat.forEachCopied([&](const TensorView& user, bool isWritten) {
    use->reads(user);
    if (isWritten) {
      use->writes(user);
    }
  });
  use->sort();
  return use;
}

CallRecord CommunicatorImpl::Call::record(Collective kind) const {
  return {.name = collectiveName(kind).data(), .inputs = givenInputs, .outputs = givenOutputs, .lists = listsOf(kind)};
}

std::shared_ptr<Activity> CommunicatorImpl::argumentCheck(const Call& call, const CollectiveCall& collective) const {
  CallArguments arguments;
  if (collective.kind == Collective::kAllToAll) {
    arguments.call = fmt::format("all_to_all({})", dtypeName(collective.dtype));
    const auto shapesOf = [](std::span<const TensorView> tensors) {
      std::vector<std::string> shapes;
      for (const TensorView& tensor : tensors) {
        shapes.push_back(numElements(tensor.shape) == 0
                             ? "nothing"
                             : fmt::format("{}{}", dtypeName(tensor.dtype), toString(tensor.shape)));
      }
      return shapes;
    };
    arguments.sends = shapesOf(call.sends);
    arguments.receives = shapesOf(call.receives);
  } else {
    arguments.call = call.like == nullptr ? describe(collective) : describe(collective, call.like->shape);
  }
  auto check = std::make_shared<ArgumentCheck>(arguments, worldSize(), rank());
  check->timeout = timeoutOf(call.options.timeout);
  return check;
}

Result<WorkPtr> CommunicatorImpl::start(Call& call, const CollectiveCall& collective,
                                        std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  SW_RETURN_IF_ERROR(checkOwner());
  const bool isAlone = inFlight_->isEmpty();
  if (isAlone && call.options.staging == nullptr && !call.flat.hasCopies() && call.flat.status().isOk() &&
      !engine_->facts().options.checkAll) {
    if (Activity* const run =
            programs_.prepareShort(collective, inputs, outputs, {call.givenInputs, call.givenOutputs})) {
      return startShort(call, collective.kind, *run, inputs, outputs);
    }
  }
  return startLong(call, collective, isAlone, inputs, outputs);
}

std::optional<Result<WorkPtr>> CommunicatorImpl::startAgain(Call& call, const CollectiveCall& collective) {
  if (!owner().isHere() || call.options.staging != nullptr || engine_->facts().options.checkAll ||
      !inFlight_->isEmpty()) {
    return std::nullopt;
  }
  ProgramCache::Given given{call.givenInputs, call.givenOutputs};
  Activity* const run = programs_.prepareAgain(collective, &given);
  if (run == nullptr) {
    return std::nullopt;
  }
  return startShort(call, collective.kind, *run, given.inputs, given.outputs);
}

Result<WorkPtr> CommunicatorImpl::startLong(Call& call, const CollectiveCall& collective, bool isAlone,
                                            std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  std::unique_ptr<MemoryUse> use;
  std::vector<std::shared_ptr<Activity>> earlier;
  if (!isAlone) {
    use = call.newUse(*inFlight_, inputs, outputs);
    earlier = inFlight_->before(*use);
  }
  Runs runs;
  const Status scratch = programs_.prepare(collective, inputs, outputs, &runs);
  const Status& memory = scratch.isOk() ? call.flat.status() : scratch;
  std::vector<std::shared_ptr<Activity>> checked;  // the check, followed by the runs; mostly empty
  if (engine_->facts().options.checkAll) {
    checked.push_back(argumentCheck(call, collective));
    checked.insert(checked.end(), runs.span().begin(), runs.span().end());
    earlier.push_back(checked.front());
  }
  std::shared_ptr<StartGate> gate;
  if (!memory.isOk()) {
    Status failure(memory.code(), fmt::format("{} needs memory for copies that rank {} does not have: {}",
                                              describe(collective), rank(), memory.message()));
    gate = std::make_shared<StartGate>(std::move(earlier), nullptr, std::move(failure));
    runs.spin = Duration::zero();
  } else if (earlier.empty()) {
    call.flat.pack();
  } else {
    gate = std::make_shared<StartGate>(std::move(earlier), call.flat.packLater());
    runs.spin = Duration::zero();
  }
  for (const auto& activity : runs.span()) {
    auto& run = static_cast<Run&>(*activity);
    run.timeout = timeoutOf(call.options.timeout);
    if (gate != nullptr) {
      run.startAfter(gate);
    }
    if (call.options.staging != nullptr) {
      run.stage(call.options.staging);
      runs.spin = Duration::zero();  // the inputs are still to come
    }
  }
  engine_->attach(call.options.staging);
  std::shared_ptr<Activity>& last = runs.last();
  last->keepAlive = call.keepAlive(std::move(runs.scratch));
  if (call.flat.hasCopies()) {
    last->epilogue = call.flat.finish();
  }
  CallRecord record = call.record(collective.kind);
  record.isHeldBack = gate != nullptr;
  SW_RETURN_IF_ERROR(engine_->submit(
      checked.empty() ? runs.span() : std::span<const std::shared_ptr<Activity>>(checked), runs.spin, record));
  if (!last->isDone()) {
    if (use == nullptr) {
      use = call.newUse(*inFlight_, inputs, outputs);
    }
    if (!use->isEmpty()) {
      inFlight_->add(last, std::move(use));
    }
  }
  inFlight_->giveBack(std::move(use));
  return WorkPtr(std::move(last));
}

Result<WorkPtr> CommunicatorImpl::startShort(Call& call, Collective kind, Activity& run,
                                             std::span<const TensorView> inputs, std::span<const TensorView> outputs) {
  run.timeout = timeoutOf(call.options.timeout);
  std::optional<CallRecord> record;  // would be a thirtieth of a short call
  if (engine_->isRecording()) {
    record = call.record(kind);
  }
  std::shared_ptr<Activity> late;
  SW_RETURN_IF_ERROR(engine_->submitShort(run, call.options.keepAlive, record.has_value() ? &*record : nullptr, &late));
  if (late == nullptr) {
    return WorkPtr(overInCall());
  }
  if (!late->isDone()) {
    std::unique_ptr<MemoryUse> use = call.newUse(*inFlight_, inputs, outputs);
    if (!use->isEmpty()) {
      inFlight_->add(late, std::move(use));
    }
    inFlight_->giveBack(std::move(use));
  }
  return WorkPtr(std::move(late));
}

Result<WorkPtr> CommunicatorImpl::barrier(CallOptions options) {
  Call call{.flat = FlatTensors("barrier", rank()), .options = std::move(options)};
  return start(call, {.kind = Collective::kBarrier, .dtype = DType::kUInt8}, kNone, kNone);
}

Result<WorkPtr> CommunicatorImpl::broadcast(const TensorView& tensor, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "broadcast"));
  Call call{.flat = FlatTensors("broadcast", rank()),
            .options = std::move(options),
            .like = &tensor,
            .givenInputs = one(tensor),
            .givenOutputs = one(tensor)};
  const bool isRoot = rank() == root;
  const Result<const TensorView*> flat = isRoot ? call.flat.input(tensor) : call.flat.output(tensor);
  SW_RETURN_IF_ERROR(flat.status());
  const CollectiveCall collective{Collective::kBroadcast, tensor.dtype, ReduceOp::kNone, root,
                                  numElements((*flat)->shape)};
  return start(call, collective, isRoot ? one(**flat) : kNone, isRoot ? kNone : one(**flat));
}

Result<WorkPtr> CommunicatorImpl::allReduce(const TensorView& tensor, ReduceOp op, CallOptions options) {
  Call call{.flat = FlatTensors("all_reduce", rank()),
            .options = std::move(options),
            .like = &tensor,
            .givenInputs = one(tensor),
            .givenOutputs = one(tensor)};
  const Result<const TensorView*> flat = call.flat.inOut(tensor);
  SW_RETURN_IF_ERROR(flat.status());
  SW_RETURN_IF_ERROR(checkReduction(tensor.dtype, op, "all_reduce"));
  return start(call, {Collective::kAllReduce, tensor.dtype, op, 0, numElements((*flat)->shape)}, one(**flat),
               one(**flat));
}

Result<WorkPtr> CommunicatorImpl::reduce(const TensorView& tensor, Rank root, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "reduce"));
  Call call{.flat = FlatTensors("reduce", rank()),
            .options = std::move(options),
            .like = &tensor,
            .givenInputs = one(tensor),
            .givenOutputs = one(tensor)};
  const bool isRoot = rank() == root;
  const Result<const TensorView*> flat = isRoot ? call.flat.inOut(tensor) : call.flat.input(tensor);
  SW_RETURN_IF_ERROR(flat.status());
  SW_RETURN_IF_ERROR(checkReduction(tensor.dtype, op, "reduce"));
  return start(call, {Collective::kReduce, tensor.dtype, op, root, numElements((*flat)->shape)}, one(**flat),
               isRoot ? one(**flat) : kNone);
}

Result<WorkPtr> CommunicatorImpl::startGathering(CollectiveCall collective, const TensorView& input,
                                                 std::span<const TensorView> outputs, CallOptions options) {
  Call call{.flat = FlatTensors(collectiveName(collective.kind).data(), rank()),
            .options = std::move(options),
            .like = &input,
            .givenInputs = one(input),
            .givenOutputs = outputs};
  if (auto again = startAgain(call, collective)) {
    return *std::move(again);
  }
  const Result<const TensorView*> flat = call.flat.input(input);
  SW_RETURN_IF_ERROR(flat.status());
  const Result<std::span<const TensorView>> flatOutputs = call.flat.outputs(outputs);
  SW_RETURN_IF_ERROR(flatOutputs.status());
  SW_RETURN_IF_ERROR(checkPerRank(outputs, collective, input, "outputs"));
  SW_RETURN_IF_ERROR(
      checkListMemory({collectiveName(collective.kind).data(), "input", "output"}, rank(), one(input), outputs));
  collective.numElems = numElements((*flat)->shape);
  return start(call, collective, one(**flat), *flatOutputs);
}

Result<WorkPtr> CommunicatorImpl::startScattering(CollectiveCall collective, const TensorView& output,
                                                  std::span<const TensorView> inputs, CallOptions options) {
  Call call{.flat = FlatTensors(collectiveName(collective.kind).data(), rank()),
            .options = std::move(options),
            .like = &output,
            .givenInputs = inputs,
            .givenOutputs = one(output)};
  if (auto again = startAgain(call, collective)) {
    return *std::move(again);
  }
  const Result<const TensorView*> flat = call.flat.output(output);
  SW_RETURN_IF_ERROR(flat.status());
  const Result<std::span<const TensorView>> flatInputs = call.flat.inputs(inputs);
  SW_RETURN_IF_ERROR(flatInputs.status());
  if (collective.kind == Collective::kReduceScatter) {
    SW_RETURN_IF_ERROR(checkReduction(output.dtype, collective.op, "reduce_scatter"));
  }
  SW_RETURN_IF_ERROR(checkPerRank(inputs, collective, output, "inputs"));
  SW_RETURN_IF_ERROR(
      checkListMemory({collectiveName(collective.kind).data(), "input", "output"}, rank(), inputs, one(output)));
  collective.numElems = numElements((*flat)->shape);
  return start(call, collective, *flatInputs, one(**flat));
}

Result<WorkPtr> CommunicatorImpl::allGather(const TensorView& input, std::span<const TensorView> outputs,
                                            CallOptions options) {
  return startGathering({.kind = Collective::kAllGather, .dtype = input.dtype}, input, outputs, std::move(options));
}

Result<WorkPtr> CommunicatorImpl::gather(const TensorView& input, std::span<const TensorView> outputs, Rank root,
                                         CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "gather"));
  return startGathering({.kind = Collective::kGather, .dtype = input.dtype, .root = root}, input, outputs,
                        std::move(options));
}

Result<WorkPtr> CommunicatorImpl::scatter(const TensorView& output, std::span<const TensorView> inputs, Rank root,
                                          CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "scatter"));
  return startScattering({.kind = Collective::kScatter, .dtype = output.dtype, .root = root}, output, inputs,
                         std::move(options));
}

Result<WorkPtr> CommunicatorImpl::reduceScatter(const TensorView& output, std::span<const TensorView> inputs,
                                                ReduceOp op, CallOptions options) {
  return startScattering({.kind = Collective::kReduceScatter, .dtype = output.dtype, .op = op}, output, inputs,
                         std::move(options));
}

Result<WorkPtr> CommunicatorImpl::allToAll(std::span<const TensorView> outputs, std::span<const TensorView> inputs,
                                           CallOptions options) {
  Call call{.flat = FlatTensors("all_to_all", rank()),
            .options = std::move(options),
            .sends = inputs,
            .receives = outputs,
            .givenInputs = inputs,
            .givenOutputs = outputs};
  if (auto again = startAgain(call, {.kind = Collective::kAllToAll})) {
    return *std::move(again);
  }
  const Result<std::span<const TensorView>> flatInputs = call.flat.inputs(inputs);
  const Result<std::span<const TensorView>> flatOutputs = call.flat.outputs(outputs);
  if (!flatInputs.isOk() || !flatOutputs.isOk()) {
    return flatInputs.isOk() ? flatOutputs.status() : flatInputs.status();
  }
  const DType dtype = inputs.empty() ? DType::kFloat32 : inputs[0].dtype;
  SW_RETURN_IF_ERROR(checkList(inputs, dtype, -1, "all_to_all", "inputs"));
  SW_RETURN_IF_ERROR(checkList(outputs, dtype, -1, "all_to_all", "outputs"));
  SW_RETURN_IF_ERROR(checkListMemory({"all_to_all", "input", "output"}, rank(), inputs, outputs));
  const std::size_t n = inputs.size();
  std::array<std::byte, 1024> room;  // malloc would be a tenth of a short call between few ranks
  std::pmr::monotonic_buffer_resource memory(room.data(), room.size());
  std::pmr::vector<std::int64_t> elems(2 * n, &memory);
  for (std::size_t r = 0; r < n; ++r) {
    elems[r] = numElements(inputs[r].shape);
    elems[n + r] = numElements(outputs[r].shape);
  }
  const std::span<const std::int64_t> inputElems = std::span(elems).first(n);
  const std::span<const std::int64_t> outputElems = std::span(elems).last(n);
  if (const auto self = static_cast<std::size_t>(rank()); inputElems[self] != outputElems[self]) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("all_to_all: rank {} sends itself {} elements and expects {}", rank(), inputElems[self],
                              outputElems[self]));
  }
  const CollectiveCall collective{
      .kind = Collective::kAllToAll, .dtype = dtype, .inputElems = inputElems, .outputElems = outputElems};
  return start(call, collective, *flatInputs, *flatOutputs);
}

// ---- checks

Status CommunicatorImpl::checkRoot(Rank root, const char* name) const {
  if (root < 0 || root >= worldSize()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: root {} is out of range: the group has {} ranks, 0 to {}",
                                                      name, root, worldSize(), worldSize() - 1)};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkPeer(Rank peer, const char* name) const {
  if (peer < 0 || peer >= worldSize()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} is out of range: the group has {} ranks, 0 to {}",
                                                      name, peer, worldSize(), worldSize() - 1)};
  }
  if (peer == rank()) {
    return {StatusCode::kInvalidArgument, fmt::format("{}: rank {} cannot exchange a message with itself", name, peer)};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkReduction(DType dtype, ReduceOp op, const char* name) const {
  if (op == ReduceOp::kNone || !supportsReduction(dtype, op)) {
    return {StatusCode::kTypeError,
            fmt::format("{}: {} is not defined on {}", name, reduceOpName(op), dtypeName(dtype))};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkPerRank(std::span<const TensorView> tensors, const CollectiveCall& call,
                                      const TensorView& like, const char* list) const {
  const char* const name = collectiveName(call.kind).data();
  const bool isOfRoot = call.kind == Collective::kGather || call.kind == Collective::kScatter;
  if (!isOfRoot || rank() == call.root) {
    return checkList(tensors, like.dtype, numElements(like.shape), name, list);
  }
  if (!tensors.empty()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: rank {} is not the root ({}) and must give no {}", name, rank(), call.root, list)};
  }
  return Status::ok();
}

Status CommunicatorImpl::checkList(std::span<const TensorView> tensors, DType dtype, std::int64_t numElems,
                                   const char* name, const char* list) const {
  if (tensors.size() != static_cast<std::size_t>(worldSize())) {
    return {StatusCode::kInvalidArgument,
            fmt::format("{}: {} must hold one tensor per rank ({}), not {}", name, list, worldSize(), tensors.size())};
  }
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    if (tensors[r].dtype != dtype) {
      return {StatusCode::kTypeError, fmt::format("{}: {}[{}] is {}, the others are {}", name, list, r,
                                                  dtypeName(tensors[r].dtype), dtypeName(dtype))};
    }
    if (numElems >= 0 && numElements(tensors[r].shape) != numElems) {
      return {StatusCode::kInvalidArgument, fmt::format("{}: {}[{}] has {} elements, {} are needed", name, list, r,
                                                        numElements(tensors[r].shape), numElems)};
    }
  }
  return Status::ok();
}

}  // namespace shardwire::internal
