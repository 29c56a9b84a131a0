#include "shardwire/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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
  Result<std::vector<internal::ForcedAlgorithm>> forced = internal::parseAlgorithms(options.algorithms);
  if (!forced.isOk()) {
    return forced.status();
  }
  Result<internal::Peers> peers = internal::connectPeers(store, rank, worldSize, options, deadlineAfter(options.timeout), groupName);
  if (!peers.isOk()) {
    return peers.status();
  }
  auto engine = internal::Engine::create(std::move(*peers), rank, worldSize, options, std::move(groupName));
  return std::unique_ptr<Communicator>(std::make_unique<internal::CommunicatorImpl>(std::move(engine), std::move(*forced)));
}

namespace internal {

namespace {

Selection selectionOf(const Engine& engine, std::vector<ForcedAlgorithm> forced) {
  const auto hosts = engine.hosts();
  const auto numHosts = static_cast<int>(std::set<std::int32_t>(hosts.begin(), hosts.end()).size());
  return {{engine.worldSize(), numHosts, {hosts.begin(), hosts.end()}},
          std::min(engine.options().inlineBytes, engine.segmentBytes()),
          std::move(forced)};
}

}  // namespace

CommunicatorImpl::CommunicatorImpl(std::shared_ptr<Engine> engine, std::vector<ForcedAlgorithm> forced)
    : engine_(std::move(engine)), programs_(engine_->rank(), selectionOf(*engine_, std::move(forced))) {}

Result<std::shared_ptr<CompiledOp>> CommunicatorImpl::compileOp(const LocalSpec& spec, std::optional<Duration> timeout) {
  const auto started = Clock::now();
  auto exchange = std::make_shared<Exchange>(encodeSpec(spec), worldSize(), rank());
  exchange->description =
      std::make_shared<const std::string>(spec.name.empty() ? "compile_op" : fmt::format("compile_op \"{}\"", spec.name));
  Hasher hash;
  hash.add(std::string_view("compile_op"));
  exchange->fingerprint = hash.value();
  exchange->timeout = timeout.value_or(Duration{0});
  const std::shared_ptr<Activity> activity = exchange;
  SW_RETURN_IF_ERROR(engine_->submit(std::span(&activity, 1), Duration::zero()));
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
  work->staging = call.options.staging;
  engine_->attach(call.options.staging);
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
  if (Staging* staging = call.options.staging; staging != nullptr) {
    engine_->attach(staging);
    staging->willWrite(flat->bytes, bytes, bytes);
  }
  SW_RETURN_IF_ERROR(engine_->submitPoint(work, [&](PointToPoint& points) { points.start(work); }));
  return WorkPtr(std::move(work));
}

void CommunicatorImpl::abort(const std::string& reason) {
  engine_->abort({StatusCode::kAborted, fmt::format("aborted on {}{}{}", engine_->groupLabel(), reason.empty() ? "" : ": ", reason)});
}

std::string CommunicatorImpl::describeCollectives() const {
  return describeSelection(programs_.selection());
}

}  // namespace internal
}  // namespace shardwire
