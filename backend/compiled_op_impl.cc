#include "backend/compiled_op_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backend/exec/check_views.h"

namespace shardwire::internal {

// Runs over tensors that were checked once.
class BoundOpImpl final : public BoundOp {
 public:
  BoundOpImpl(std::shared_ptr<CompiledOpImpl> op, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
              std::shared_ptr<void> keepAlive, std::optional<Duration> timeout)
      : op_(std::move(op)),
        inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()),
        keepAlive_(std::move(keepAlive)),
        timeout_(timeout) {}
  ~BoundOpImpl() override {
    op_->engine_->underLock([this] { pool_.forEach([](PlanRun& run) { run.keepPins(false); }); });
  }

  Result<WorkPtr> run() override {
    bool isNew = false;
    const auto run = [&] {
      std::lock_guard lock(mutex_);
      return pool_.take([&] { return std::make_shared<PlanRun>(op_->plan_); }, &isNew);
    }();
    if (isNew) {
      run->prepare(inputs_, outputs_);
      run->keepPins(true);
    } else {
      run->prepareAgain();
    }
    return op_->start(run, keepAlive_, timeout_);
  }

 private:
  const std::shared_ptr<CompiledOpImpl> op_;
  const std::vector<TensorView> inputs_;
  const std::vector<TensorView> outputs_;
  const std::shared_ptr<void> keepAlive_;
  const std::optional<Duration> timeout_;
  std::mutex mutex_;  // guards the pool
  RunPool<PlanRun> pool_;
};

namespace {

std::string labelOf(const GlobalSpec& spec) {
  return spec.name.empty() ? "compile_op" : fmt::format("compile_op \"{}\"", spec.name);
}

std::string bytesText(std::uint64_t bytes) {
  if (bytes < 1000) {
    return fmt::format("{} B", bytes);
  }
  const double b = static_cast<double>(bytes);
  return bytes < 1000000      ? fmt::format("{:.1f} kB", b / 1e3)
         : bytes < 1000000000 ? fmt::format("{:.1f} MB", b / 1e6)
                              : fmt::format("{:.2f} GB", b / 1e9);
}

std::uint64_t sum(const std::vector<PlanEdge>& edges) {
  std::uint64_t bytes = 0;
  for (const PlanEdge& edge : edges) {
    bytes += edge.bytes;
  }
  return bytes;
}

}  // namespace

CompiledOpImpl::CompiledOpImpl(std::shared_ptr<Engine> engine, std::shared_ptr<const GlobalSpec> spec, Plan plan, double compileSeconds)
    : engine_(std::move(engine)),
      spec_(std::move(spec)),
      plan_(std::make_shared<const Plan>(std::move(plan))),
      label_(labelOf(*spec_)),
      description_(std::make_shared<const std::string>(
          fmt::format("a run of {} ({} tensors, plan {:016x})", label_, spec_->tensors.size(), plan_->fingerprint))),
      compileSeconds_(compileSeconds) {
  for (const GlobalTensor& tensor : spec_->tensors) {
    tensors_.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype, .reduction = tensor.reduction});
  }
}

Status CompiledOpImpl::check(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const {
  SW_RETURN_IF_ERROR(checkViews(*plan_, inputs, outputs, label_));
  return checkAliasing(*plan_, inputs, outputs, label_);
}

Result<WorkPtr> CompiledOpImpl::start(std::shared_ptr<PlanRun> run, std::shared_ptr<void> keepAlive, std::optional<Duration> timeout) {
  run->description = description_;
  run->timed = true;
  run->keepAlive = std::move(keepAlive);
  run->timeout = timeout.value_or(Duration{0});
  {
    std::lock_guard lock(mutex_);
    ++numRuns_;
    lastRun_ = run;
  }
  const std::shared_ptr<Activity> activity = run;
  if (Status status = engine_->submit(std::span(&activity, 1), run->worthSpinning()); !status.isOk()) {
    return status;
  }
  return WorkPtr(std::move(run));
}

Result<WorkPtr> CompiledOpImpl::run(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                    std::shared_ptr<void> keepAlive, std::optional<Duration> timeout, Staging* staging) {
  SW_RETURN_IF_ERROR(check(inputs, outputs));
  const auto run = [&] {
    std::lock_guard lock(mutex_);
    return pool_.take([&] { return std::make_shared<PlanRun>(plan_); });
  }();
  run->prepare(inputs, outputs);
  run->stage(staging);
  engine_->attach(staging);
  return start(run, std::move(keepAlive), timeout);
}

Result<std::unique_ptr<BoundOp>> CompiledOpImpl::bind(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                                      std::shared_ptr<void> keepAlive, std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(check(inputs, outputs));
  return std::unique_ptr<BoundOp>(std::make_unique<BoundOpImpl>(shared_from_this(), inputs, outputs, std::move(keepAlive), timeout));
}

OpStats CompiledOpImpl::stats() const {
  OpStats stats;
  stats.bytesSent = sum(plan_->sends);
  stats.bytesReceived = sum(plan_->receives);
  for (std::uint32_t i = 0; i < plan_->moves.size(); ++i) {
    const PlanMove& move = plan_->moves[i];
    if (i < plan_->numOwnCopies) {
      stats.bytesLocal += moveBytes(*plan_, move);
    }
    if (move.numSources > 1) {
      stats.bytesReduced += moveBytes(*plan_, move);
    }
  }
  stats.numMoves = plan_->moves.size();
  stats.planBytes = memoryBytes(*plan_);
  std::uint32_t mostSources = 1;
  for (const PlanMove& move : plan_->moves) {
    mostSources = std::max(mostSources, move.numSources);
  }
  stats.scratchBytes =
      plan_->receives.size() * engine_->options().ringBytes + (mostSources > 1 ? mostSources * engine_->segmentBytes() : 0);
  stats.compileSeconds = compileSeconds_;
  std::lock_guard lock(mutex_);
  stats.numRuns = numRuns_;
  if (const auto run = lastRun_.lock(); run != nullptr && run->isDone()) {
    stats.lastRunSeconds = std::chrono::duration<double>(run->ended - run->started).count();
  }
  return stats;
}

std::string CompiledOpImpl::explain() const {
  const Result<Traffic> traffic = trafficOf(*spec_, engine_->hosts());
  if (!traffic.isOk()) {
    return traffic.status().message();
  }
  std::string text = fmt::format("{} on {} ranks, {} tensor{}; compiled in {:.3f} ms\n", label_, spec_->ranks.size(), spec_->tensors.size(),
                                 spec_->tensors.size() == 1 ? "" : "s", compileSeconds_ * 1e3);
  constexpr std::size_t kMaxListed = 8;
  for (std::size_t i = 0; i < std::min(kMaxListed, spec_->tensors.size()); ++i) {
    const GlobalTensor& tensor = spec_->tensors[i];
    text += fmt::format("  {} {}{}{}\n", tensor.name.empty() ? "tensor" : tensor.name, dtypeName(tensor.dtype), toString(tensor.shape),
                        tensor.reduction == ReduceOp::kNone ? "" : fmt::format(", {}", reduceOpName(tensor.reduction)));
  }
  if (spec_->tensors.size() > kMaxListed) {
    text += fmt::format("  ... and {} more\n", spec_->tensors.size() - kMaxListed);
  }
  text += fmt::format("{:>6} {:>6} {:>12} {:>8}\n", "from", "to", "bytes", "boxes");
  std::uint64_t moved = 0;
  for (const Traffic::Edge& edge : traffic->edges) {
    text += fmt::format("{:>6} {:>6} {:>12} {:>8}{}\n", edge.source, edge.destination, bytesText(edge.bytes), edge.pieces,
                        edge.source == edge.destination ? "  (within the rank)" : "");
    moved += edge.source == edge.destination ? 0 : edge.bytes;
  }
  text += fmt::format("between ranks: {}; the least possible: {}\n", bytesText(moved), bytesText(traffic->lowerBoundBytes));
  text += fmt::format("rank {} runs {} moves ({} within the rank, {} reductions)\n", plan_->rank, plan_->moves.size(), plan_->numOwnCopies,
                      plan_->moves.size() - plan_->firstCombine);
  text += "paths from rank " + std::to_string(plan_->rank) + ":\n" + engine_->describeTransports();
  return text;
}

std::string CompiledOpImpl::explainJson() const {
  const Result<Traffic> traffic = trafficOf(*spec_, engine_->hosts());
  if (!traffic.isOk()) {
    return nlohmann::json{{"error", traffic.status().message()}}.dump();
  }
  nlohmann::json json{{"name", spec_->name},
                      {"rank", plan_->rank},
                      {"world_size", plan_->worldSize},
                      {"lower_bound_bytes", traffic->lowerBoundBytes},
                      {"tensors", nlohmann::json::array()},
                      {"edges", nlohmann::json::array()}};
  for (const GlobalTensor& tensor : spec_->tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.end())},
                               {"dtype", dtypeName(tensor.dtype)},
                               {"reduction", reduceOpName(tensor.reduction)}});
  }
  for (const Traffic::Edge& edge : traffic->edges) {
    json["edges"].push_back({{"src", edge.source}, {"dst", edge.destination}, {"bytes", edge.bytes}, {"pieces", edge.pieces}});
  }
  return json.dump();
}

}  // namespace shardwire::internal
