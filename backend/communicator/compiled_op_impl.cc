// A run takes a PlanRun from the pool, gives the PlanRun the call's tensors and submits the PlanRun. A run over the
// same memory as an earlier operation starts after the earlier operation. A bound op has checked its tensors and knows
// their memory, so a repeated run allocates nothing.
#include "backend/communicator/compiled_op_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "backend/exec/argument_check.h"
#include "backend/exec/check_views.h"

namespace shardwire::internal {

namespace {

std::unique_ptr<MemoryUse> useOf(std::unique_ptr<MemoryUse> use, std::span<const TensorView> inputs,
                                 std::span<const TensorView> outputs) {
  use->reads(inputs);
  use->writes(outputs);
  use->sort();
  return use;
}

}  // namespace

// Runs over tensors checked once.
class BoundOpImpl final : public BoundOp {
 public:
  BoundOpImpl(std::shared_ptr<CompiledOpImpl> op, std::span<const TensorView> inputs,
              std::span<const TensorView> outputs, std::shared_ptr<void> keepAlive, std::optional<Duration> timeout)
      : op_(std::move(op)),
        inputs_(inputs.begin(), inputs.end()),
        outputs_(outputs.begin(), outputs.end()),
        use_(useOf(std::make_unique<MemoryUse>(), inputs, outputs)),
        keepAlive_(std::move(keepAlive)),
        timeout_(timeout) {}
  ~BoundOpImpl() override {
    if (op_->engine_->facts().owner.isHere()) {
      op_->engine_->locked([this](const GroupState&) {
        const MutexLock lock(mutex_);
        pool_.forEach([](PlanRun& run) { run.keepPins(false); });
      });
    }
  }

  Result<WorkPtr> run() override {
    SW_RETURN_IF_ERROR(op_->checkOwner());
    (void)op_->inFlight_->isEmpty();  // finished runs go back to the pool
    bool isNew = false;
    const auto run = [&] {
      const MutexLock lock(mutex_);
      return pool_.take([&] { return std::make_shared<PlanRun>(op_->plan_); }, &isNew);
    }();
    if (isNew) {
      run->prepare(inputs_, outputs_);
      run->keepPins(true);
    } else {
      run->prepareAgain();
    }
    return op_->start(run, {inputs_, outputs_}, keepAlive_, timeout_, [this] { return use_; });
  }

 private:
  const std::shared_ptr<CompiledOpImpl> op_;
  const std::vector<TensorView> inputs_;
  const std::vector<TensorView> outputs_;
  const std::shared_ptr<const MemoryUse> use_;
  const std::shared_ptr<void> keepAlive_;
  const std::optional<Duration> timeout_;
  Mutex mutex_;
  RunPool<PlanRun> pool_ SW_GUARDED_BY(mutex_);
};

CompiledOpImpl::CompiledOpImpl(std::shared_ptr<Engine> engine, std::shared_ptr<InFlight> inFlight, OpFacts facts,
                               PlanProvenance provenance, double compileSeconds)
    : engine_(std::move(engine)),
      inFlight_(std::move(inFlight)),
      facts_(std::move(facts)),
      provenance_(std::move(provenance)),
      plan_(facts_.plan()),
      description_(
          std::make_shared<const std::string>(fmt::format("a run of {} ({} tensors, plan {:016x})", facts_.label(),
                                                          facts_.agreed().tensors.size(), plan_->fingerprint))),
      compileSeconds_(compileSeconds) {}

Status CompiledOpImpl::check(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const {
  SW_RETURN_IF_ERROR(checkViews(*plan_, inputs, outputs, facts_.label()));
  return checkAliasing(*plan_, inputs, outputs, facts_.label());
}

template <typename MakeUse>
Result<WorkPtr> CompiledOpImpl::start(std::shared_ptr<PlanRun> run, Views views, std::shared_ptr<void> keepAlive,
                                      std::optional<Duration> timeout, MakeUse&& makeUse) {
  run->description = description_;
  run->timed = true;
  run->keepAlive = std::move(keepAlive);
  run->timeout = timeoutOf(timeout);
  {
    const MutexLock lock(mutex_);
    ++numRuns_;
    lastRun_ = run;
  }
  decltype(makeUse()) use = nullptr;
  std::vector<std::shared_ptr<Activity>> earlier;
  if (!inFlight_->isEmpty()) {
    use = makeUse();
    earlier = inFlight_->before(*use);
  }
  std::array<std::shared_ptr<Activity>, 2> activities = {nullptr, run};
  std::span<const std::shared_ptr<Activity>> submitted(&activities[1], 1);
  if (engine_->facts().options.checkAll) {
    activities[0] = std::make_shared<ArgumentCheck>(CallArguments{description_.text(), {}, {}},
                                                    engine_->facts().worldSize, engine_->facts().rank);
    activities[0]->timeout = run->timeout;
    earlier.push_back(activities[0]);
    submitted = activities;
  }
  Duration spin = run->worthSpinning();
  const CallRecord record{
      .name = "compiled_op", .inputs = views.inputs, .outputs = views.outputs, .isHeldBack = !earlier.empty()};
  if (!earlier.empty()) {
    run->startAfter(std::make_shared<StartGate>(std::move(earlier), nullptr));
    spin = Duration::zero();
  }
  SW_RETURN_IF_ERROR(engine_->submit(submitted, spin, record));
  if (!run->isDone()) {
    inFlight_->add(run, use != nullptr ? std::move(use) : makeUse());
  }
  inFlight_->giveBack(std::move(use));
  return WorkPtr(std::move(run));
}

Result<WorkPtr> CompiledOpImpl::run(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                    std::shared_ptr<void> keepAlive, std::optional<Duration> timeout,
                                    Staging* staging) {
  SW_RETURN_IF_ERROR(checkOwner());
  SW_RETURN_IF_ERROR(check(inputs, outputs));
  (void)inFlight_->isEmpty();  // finished runs go back to the pool
  const auto run = [&] {
    const MutexLock lock(mutex_);
    return pool_.take([&] { return std::make_shared<PlanRun>(plan_); });
  }();
  run->prepare(inputs, outputs);
  run->stage(staging);
  engine_->attach(staging);
  return start(run, {inputs, outputs}, std::move(keepAlive), timeout,
               [&] { return useOf(inFlight_->newUse(), inputs, outputs); });
}

Result<std::unique_ptr<BoundOp>> CompiledOpImpl::bind(std::span<const TensorView> inputs,
                                                      std::span<const TensorView> outputs,
                                                      std::shared_ptr<void> keepAlive,
                                                      std::optional<Duration> timeout) {
  SW_RETURN_IF_ERROR(checkOwner());
  SW_RETURN_IF_ERROR(check(inputs, outputs));
  return std::unique_ptr<BoundOp>(
      std::make_unique<BoundOpImpl>(shared_from_this(), inputs, outputs, std::move(keepAlive), timeout));
}

OpStats CompiledOpImpl::stats() const {
  OpStats stats = facts_.stats();
  std::uint32_t mostSources = 1;
  for (const PlanMove& move : plan_->moves) {
    mostSources = std::max(mostSources, move.numSources);
  }
  stats.scratchBytes = plan_->receives.size() * engine_->facts().options.ringBytes +
                       (mostSources > 1 ? mostSources * engine_->facts().segmentBytes : 0);
  stats.compileSeconds = compileSeconds_;
  if (!engine_->facts().owner.isHere()) {
    return stats;  // a forked child has no runs, and a thread that it lacks may have held the lock
  }
  const MutexLock lock(mutex_);
  stats.numRuns = numRuns_;
  if (const auto run = lastRun_.lock(); run != nullptr && run->isDone()) {
    stats.lastRunSeconds = std::chrono::duration<double>(run->ended - run->started).count();
  }
  return stats;
}

std::string CompiledOpImpl::explain() const {
  return facts_.explain(fmt::format("; compiled in {:.3f} ms", compileSeconds_ * 1e3)) +
         fmt::format("paths from rank {}:\n", plan_->rank) + engine_->describeLinks();
}

}  // namespace shardwire::internal
