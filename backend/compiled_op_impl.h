// CompiledOp over an engine: checks the tensors of a call, hands a pooled PlanRun to the engine, and explains itself.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/exec/engine.h"
#include "backend/exec/plan_run.h"
#include "ops/plan/redistribute.h"
#include "shardwire/compiled_op.h"

namespace shardwire::internal {

class CompiledOpImpl final : public CompiledOp, public std::enable_shared_from_this<CompiledOpImpl> {
 public:
  CompiledOpImpl(std::shared_ptr<Engine> engine, std::shared_ptr<const GlobalSpec> spec, Plan plan, double compileSeconds);

  Status check(std::span<const TensorView> inputs, std::span<const TensorView> outputs) const override;
  Result<WorkPtr> run(std::span<const TensorView> inputs, std::span<const TensorView> outputs, std::shared_ptr<void> keepAlive,
                      std::optional<Duration> timeout, Staging* staging) override;
  Result<std::unique_ptr<BoundOp>> bind(std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                        std::shared_ptr<void> keepAlive, std::optional<Duration> timeout) override;
  OpStats stats() const override;
  std::string explain() const override;
  std::string explainJson() const override;
  const std::vector<LocalTensor>& inputs() const override { return mine().inputs; }
  const std::vector<LocalTensor>& outputs() const override { return mine().outputs; }
  const std::vector<TensorDecl>& tensors() const override { return tensors_; }

 private:
  friend class BoundOpImpl;
  const RankSpec& mine() const { return spec_->ranks[static_cast<std::size_t>(engine_->rank())]; }
  Result<WorkPtr> start(std::shared_ptr<PlanRun> run, std::shared_ptr<void> keepAlive, std::optional<Duration> timeout);

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<const GlobalSpec> spec_;
  const std::shared_ptr<const Plan> plan_;
  const std::string label_;  // "compile_op" or "compile_op \"name\"", for messages
  const Description description_;
  const double compileSeconds_;
  std::vector<TensorDecl> tensors_;

  mutable std::mutex mutex_;  // guards what follows
  RunPool<PlanRun> pool_;
  std::uint64_t numRuns_ = 0;
  std::weak_ptr<PlanRun> lastRun_;
};

}  // namespace shardwire::internal
