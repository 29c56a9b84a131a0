#include "shardwire/communicator.h"

#include <fmt/format.h>

#include "backend/communicator_impl.h"
#include "backend/exec/exchange.h"
#include "backend/exec/point_to_point.h"
#include "backend/flat_tensor.h"
#include "ops/plan/global_spec.h"
#include "ops/plan/hash.h"

namespace shardwire {

Result<std::unique_ptr<Communicator>> Communicator::create(Store& store, Rank rank, int worldSize, const Options& options,
                                                           std::string groupName) {
  if (worldSize < 1 || rank < 0 || rank >= worldSize) {
    return Status(StatusCode::kInvalidArgument, fmt::format("rank {} of {} ranks cannot be: ranks count from 0", rank, worldSize));
  }
  Result<internal::Peers> peers = internal::connectPeers(store, rank, worldSize, options, deadlineAfter(options.timeout), groupName);
  if (!peers.isOk()) {
    return peers.status();
  }
  auto engine = internal::Engine::create(std::move(*peers), rank, worldSize, options, std::move(groupName));
  return std::unique_ptr<Communicator>(std::make_unique<internal::CommunicatorImpl>(std::move(engine)));
}

namespace internal {

namespace {

constexpr std::size_t kMaxPlans = 1024;

std::string_view collectiveName(Collective kind) {
  switch (kind) {
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kReduce:
      return "reduce";
    case Collective::kAllReduce:
    case Collective::kReduceChunks:
    case Collective::kGatherChunks:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kGather:
      return "gather";
    case Collective::kScatter:
      return "scatter";
    case Collective::kReduceScatter:
      return "reduce_scatter";
  }
  return "collective";
}

std::string describe(const CollectiveKey& key) {
  std::string text = fmt::format("{}({}[{}]", collectiveName(key.kind), dtypeName(key.dtype), key.numElems);
  if (key.op != ReduceOp::kNone) {
    text += fmt::format(", {}", reduceOpName(key.op));
  }
  if (key.kind == Collective::kBroadcast || key.kind == Collective::kReduce || key.kind == Collective::kGather ||
      key.kind == Collective::kScatter) {
    text += fmt::format(", root {}", key.root);
  }
  return text + ")";
}

TensorView part(const TensorView& flat, std::int64_t first, std::int64_t last) {
  return TensorView::contiguous(flat.bytes + static_cast<std::size_t>(first) * elementBytes(flat.dtype), flat.dtype, {last - first});
}

std::span<const TensorView> one(const TensorView& view) {
  return {&view, 1};
}

}  // namespace

// One call of a collective: its flat tensors and what must live as long as it.
struct CommunicatorImpl::Call {
  CallOptions options;
  FlatTensors flat;

  std::shared_ptr<void> keepAlive() const {
    if (flat.memory() == nullptr) {
      return options.keepAlive;
    }
    return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(options.keepAlive, flat.memory());
  }
};

// ---- compileOp

Result<std::shared_ptr<CompiledOp>> CommunicatorImpl::compileOp(const LocalSpec& spec, std::optional<Duration> timeout) {
  const auto started = Clock::now();
  auto exchange = std::make_shared<Exchange>(encodeSpec(spec), worldSize(), rank(), true);
  exchange->description =
      std::make_shared<const std::string>(spec.name.empty() ? "compile_op" : fmt::format("compile_op \"{}\"", spec.name));
  Hasher hash;
  hash.add(std::string_view("compile_op"));
  exchange->fingerprint = hash.value();
  exchange->timeout = timeout.value_or(Duration{0});
  const std::shared_ptr<Activity> activity = exchange;
  SW_RETURN_IF_ERROR(engine_->submit(std::span(&activity, 1), false));
  SW_RETURN_IF_ERROR(exchange->wait(kNoDeadline));

  std::vector<LocalSpec> specs;
  specs.reserve(exchange->blobs().size());
  for (std::size_t r = 0; r < exchange->blobs().size(); ++r) {
    Result<LocalSpec> decoded = decodeSpec(exchange->blobs()[r]);
    if (!decoded.isOk()) {
      return Status(decoded.status().code(), fmt::format("the spec of rank {} cannot be read: {}", r, decoded.status().message()));
    }
    specs.push_back(std::move(*decoded));
  }
  Result<GlobalSpec> global = mergeSpecs(specs);
  if (!global.isOk()) {
    return global.status();
  }
  Result<Plan> plan = redistribute(*global, rank(), engine_->hosts());
  if (!plan.isOk()) {
    return plan.status();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - started).count();
  return std::shared_ptr<CompiledOp>(
      std::make_shared<CompiledOpImpl>(engine_, std::make_shared<const GlobalSpec>(std::move(*global)), std::move(*plan), seconds));
}

// ---- collectives

std::shared_ptr<CommunicatorImpl::Kept> CommunicatorImpl::keptPlan(const CollectiveKey& key) {
  std::lock_guard lock(plansMutex_);
  if (const auto found = plans_.find(key); found != plans_.end()) {
    return found->second;
  }
  if (plans_.size() >= kMaxPlans) {
    plans_.clear();  // shapes that never repeat; those in flight hold their own plan
  }
  auto plan = std::make_shared<const Plan>(collectivePlan(key, rank(), worldSize()));
  auto kept = std::make_shared<Kept>(std::move(plan), std::make_shared<const std::string>(describe(key)));
  plans_.emplace(key, kept);
  return kept;
}

std::shared_ptr<PlanRun> CommunicatorImpl::makeRun(const CollectiveKey& key, std::span<const TensorView> inputs,
                                                   std::span<const TensorView> outputs, bool inPlace, std::shared_ptr<Activity> after) {
  const auto kept = keptPlan(key);
  auto run = kept->pool.take();
  run->description = kept->description;
  run->prepare(inputs, outputs, inPlace, std::move(after));
  return run;
}

Result<WorkPtr> CommunicatorImpl::submit(Call& call, std::span<const std::shared_ptr<Activity>> activities, bool small) {
  for (const auto& activity : activities) {
    activity->timeout = call.options.timeout.value_or(Duration{0});
  }
  activities.back()->keepAlive = call.keepAlive();
  activities.back()->epilogue = call.flat.finish();
  WorkPtr work = activities.back();
  SW_RETURN_IF_ERROR(engine_->submit(activities, small));
  return work;
}

Result<WorkPtr> CommunicatorImpl::runOne(Call& call, const CollectiveKey& key, std::span<const TensorView> inputs,
                                         std::span<const TensorView> outputs, bool inPlace) {
  auto run = makeRun(key, inputs, outputs, inPlace);
  const bool small = run->isSmall(*engine_);
  const std::shared_ptr<Activity> activity = std::move(run);
  return submit(call, std::span(&activity, 1), small);
}

Result<WorkPtr> CommunicatorImpl::barrier(CallOptions options) {
  Call call{std::move(options), {}};
  auto exchange = std::make_shared<Exchange>("", worldSize(), rank(), false);
  static const auto description = std::make_shared<const std::string>("barrier");
  exchange->description = description;
  Hasher hash;
  hash.add(*description);
  exchange->fingerprint = hash.value();
  const std::shared_ptr<Activity> activity = std::move(exchange);
  return submit(call, std::span(&activity, 1), true);
}

Result<WorkPtr> CommunicatorImpl::broadcast(TensorView tensor, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "broadcast"));
  Call call{std::move(options), {}};
  const bool isRoot = rank() == root;
  Result<TensorView> flat = isRoot ? call.flat.input(tensor) : call.flat.output(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  const CollectiveKey key{Collective::kBroadcast, tensor.dtype, ReduceOp::kNone, root, flat->shape[0]};
  const std::span<const TensorView> none;
  return runOne(call, key, isRoot ? one(*flat) : none, isRoot ? none : one(*flat), false);
}

Result<WorkPtr> CommunicatorImpl::allReduce(TensorView tensor, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkReduction(tensor.dtype, op, "all_reduce"));
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.inOut(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  CollectiveKey key{Collective::kAllReduce, tensor.dtype, op, 0, flat->shape[0]};
  const std::size_t bytes = static_cast<std::size_t>(key.numElems) * elementBytes(key.dtype);
  if (bytes <= engine_->options().inlineBytes || worldSize() == 1) {
    return runOne(call, key, one(*flat), one(*flat), true);
  }
  // Long: every rank reduces its chunk, then all read each other's chunks. Peers only read, of my tensor, the chunks that I do not write in
  // the first half, and only my chunk in the second: so one buffer does.
  key.kind = Collective::kReduceChunks;
  const auto [first, last] = chunkOf(key, rank(), worldSize());
  const TensorView chunk = part(*flat, first, last);
  auto reduceRun = makeRun(key, one(*flat), one(chunk), true);
  key.kind = Collective::kGatherChunks;
  key.op = ReduceOp::kNone;
  auto gatherRun = makeRun(key, one(chunk), one(*flat), true, reduceRun);
  gatherRun->description = reduceRun->description;
  const std::shared_ptr<Activity> activities[] = {std::move(reduceRun), std::move(gatherRun)};
  return submit(call, activities, false);
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
  const CollectiveKey key{Collective::kReduce, tensor.dtype, op, root, flat->shape[0]};
  return runOne(call, key, one(*flat), isRoot ? one(*flat) : std::span<const TensorView>(), isRoot);
}

Result<WorkPtr> CommunicatorImpl::allGather(TensorView input, std::span<const TensorView> outputs, CallOptions options) {
  SW_RETURN_IF_ERROR(checkList(outputs, input.dtype, numElements(input.shape), "all_gather", "outputs"));
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.input(input);
  if (!flat.isOk()) {
    return flat.status();
  }
  const Result<std::vector<TensorView>> flatOutputs = call.flat.outputs(outputs);
  if (!flatOutputs.isOk()) {
    return flatOutputs.status();
  }
  // The input may be the rank's own part of the output: what all read is then rewritten with itself.
  const CollectiveKey key{Collective::kAllGather, input.dtype, ReduceOp::kNone, 0, flat->shape[0]};
  return runOne(call, key, one(*flat), *flatOutputs, true);
}

Result<WorkPtr> CommunicatorImpl::gather(TensorView input, std::span<const TensorView> outputs, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "gather"));
  if (rank() == root) {
    SW_RETURN_IF_ERROR(checkList(outputs, input.dtype, numElements(input.shape), "gather", "outputs"));
  } else if (!outputs.empty()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("gather: rank {} is not the root ({}) and must give no outputs", rank(), root));
  }
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.input(input);
  if (!flat.isOk()) {
    return flat.status();
  }
  const Result<std::vector<TensorView>> flatOutputs = call.flat.outputs(outputs);
  if (!flatOutputs.isOk()) {
    return flatOutputs.status();
  }
  const CollectiveKey key{Collective::kGather, input.dtype, ReduceOp::kNone, root, flat->shape[0]};
  return runOne(call, key, one(*flat), *flatOutputs, true);
}

Result<WorkPtr> CommunicatorImpl::scatter(TensorView output, std::span<const TensorView> inputs, Rank root, CallOptions options) {
  SW_RETURN_IF_ERROR(checkRoot(root, "scatter"));
  if (rank() == root) {
    SW_RETURN_IF_ERROR(checkList(inputs, output.dtype, numElements(output.shape), "scatter", "inputs"));
  } else if (!inputs.empty()) {
    return Status(StatusCode::kInvalidArgument, fmt::format("scatter: rank {} is not the root ({}) and must give no inputs", rank(), root));
  }
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.output(output);
  if (!flat.isOk()) {
    return flat.status();
  }
  const Result<std::vector<TensorView>> flatInputs = call.flat.inputs(inputs);
  if (!flatInputs.isOk()) {
    return flatInputs.status();
  }
  const CollectiveKey key{Collective::kScatter, output.dtype, ReduceOp::kNone, root, flat->shape[0]};
  return runOne(call, key, *flatInputs, one(*flat), true);
}

Result<WorkPtr> CommunicatorImpl::reduceScatter(TensorView output, std::span<const TensorView> inputs, ReduceOp op, CallOptions options) {
  SW_RETURN_IF_ERROR(checkReduction(output.dtype, op, "reduce_scatter"));
  SW_RETURN_IF_ERROR(checkList(inputs, output.dtype, numElements(output.shape), "reduce_scatter", "inputs"));
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.output(output);
  if (!flat.isOk()) {
    return flat.status();
  }
  const Result<std::vector<TensorView>> flatInputs = call.flat.inputs(inputs);
  if (!flatInputs.isOk()) {
    return flatInputs.status();
  }
  const CollectiveKey key{Collective::kReduceScatter, output.dtype, op, 0, flat->shape[0]};
  return runOne(call, key, *flatInputs, one(*flat), true);
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
  auto run = std::make_shared<PlanRun>(std::make_shared<const Plan>(allToAllPlan(dtype, inputElems, outputElems, rank())));
  run->description = std::make_shared<const std::string>(fmt::format("all_to_all({}, sends [{}], receives [{}])", dtypeName(dtype),
                                                                     fmt::join(inputElems, ", "), fmt::join(outputElems, ", ")));
  run->prepare(*flatInputs, *flatOutputs, false);
  const bool small = run->isSmall(*engine_);
  const std::shared_ptr<Activity> activity = std::move(run);
  return submit(call, std::span(&activity, 1), small);
}

// ---- point to point

Result<WorkPtr> CommunicatorImpl::send(TensorView tensor, Rank peer, int tag, CallOptions options) {
  SW_RETURN_IF_ERROR(checkPeer(peer, "send"));
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.input(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  const std::size_t bytes = static_cast<std::size_t>(flat->shape[0]) * elementBytes(tensor.dtype);
  auto work = std::make_shared<PointSend>(peer, tag, std::span<const std::byte>(flat->bytes, bytes));
  work->description = std::make_shared<const std::string>(
      fmt::format("send({}[{}], to rank {}, tag {})", dtypeName(tensor.dtype), flat->shape[0], peer, tag));
  work->timeout = call.options.timeout.value_or(Duration{0});
  work->keepAlive = call.keepAlive();
  SW_RETURN_IF_ERROR(engine_->submitPoint(work, [&](PointToPoint& points) { points.start(work); }));
  return WorkPtr(std::move(work));
}

Result<WorkPtr> CommunicatorImpl::recv(TensorView tensor, Rank peer, int tag, CallOptions options) {
  if (peer != kAnySource) {
    SW_RETURN_IF_ERROR(checkPeer(peer, "recv"));
  }
  Call call{std::move(options), {}};
  Result<TensorView> flat = call.flat.output(tensor);
  if (!flat.isOk()) {
    return flat.status();
  }
  const std::size_t bytes = static_cast<std::size_t>(flat->shape[0]) * elementBytes(tensor.dtype);
  auto work = std::make_shared<PointRecv>(peer, tag, std::span<std::byte>(flat->bytes, bytes));
  work->description = std::make_shared<const std::string>(fmt::format(
      "recv({}[{}], from {}, tag {})", dtypeName(tensor.dtype), flat->shape[0], peer < 0 ? "any rank" : fmt::format("rank {}", peer), tag));
  work->timeout = call.options.timeout.value_or(Duration{0});
  work->keepAlive = call.keepAlive();
  work->epilogue = call.flat.finish();
  SW_RETURN_IF_ERROR(engine_->submitPoint(work, [&](PointToPoint& points) { points.start(work); }));
  return WorkPtr(std::move(work));
}

void CommunicatorImpl::abort(const std::string& reason) {
  engine_->abort({StatusCode::kAborted, fmt::format("aborted on {}{}{}", engine_->groupLabel(), reason.empty() ? "" : ": ", reason)});
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

}  // namespace internal
}  // namespace shardwire
