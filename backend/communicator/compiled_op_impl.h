// CompiledOp over an engine: checks the tensors of a call, hands a pooled PlanRun to the engine, and explains itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/communicator/in_flight.h"
#include "backend/exec/engine.h"
#include "backend/exec/plan_run.h"
#include "backend/plans/op_facts.h"
#include "shardwire/compiled_op.h"

namespace shardwire::internal {

class CompiledOpImpl final : public CompiledOp, public std::enable_shared_from_this<CompiledOpImpl> {
 public:
  // `inFlight`: the communicator's.
  CompiledOpImpl(std::shared_ptr<Engine> engine, std::shared_ptr<InFlight> inFlight, OpFacts facts,
                 PlanProvenance provenance, double compileSeconds);

  Status check(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const override;
  Result<WorkPtr> run(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                      std::shared_ptr<void> keepAlive, std::optional<Duration> timeout, Staging* staging) override;
  Result<std::unique_ptr<BoundOp>> bind(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                        std::shared_ptr<void> keepAlive, std::optional<Duration> timeout) override;
  OpStats stats() const override;
  std::string explain() const override;
  std::string explainJson() const override { return facts_.explainJson(); }
  std::string planBytes() const override { return encodeRow(facts_.row()); }
  const PlanProvenance& planProvenance() const override { return provenance_; }
  const std::vector<LocalTensor>& inputs() const override { return facts_.agreed().inputs; }
  const std::vector<LocalTensor>& outputs() const override { return facts_.agreed().outputs; }
  const std::vector<TensorDecl>& tensors() const override { return facts_.agreed().tensors; }

 private:
  friend class BoundOpImpl;
  // Called before any lock: in a child of fork(), a thread missing in the child may have held the lock.
  Status checkOwner() const {
    return engine_->facts().owner.isHere() ? Status::ok() : engine_->facts().owner.check(facts_.label());
  }
  // `makeUse` returns the memory that the run reads and writes, and is called only on demand.
  struct Views {
    std::span<const TensorView> inputs;
    std::span<const TensorView> outputs;
  };
  template <typename MakeUse>
  Result<WorkPtr> start(std::shared_ptr<PlanRun> run, Views views, std::shared_ptr<void> keepAlive,
                        std::optional<Duration> timeout, MakeUse&& makeUse);

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<InFlight> inFlight_;
  const OpFacts facts_;
  const PlanProvenance provenance_;
  const std::shared_ptr<const Plan> plan_;
  const Description description_;
  const double compileSeconds_;

  mutable Mutex mutex_;
  RunPool<PlanRun> pool_ SW_GUARDED_BY(mutex_);
  std::uint64_t numRuns_ SW_GUARDED_BY(mutex_) = 0;
  std::weak_ptr<PlanRun> lastRun_ SW_GUARDED_BY(mutex_);
};

}  // namespace shardwire::internal
