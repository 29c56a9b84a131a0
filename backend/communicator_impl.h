// Wires the rooms together: connects the peers, plans collectives (and keeps the plans), exchanges specs, hands runs to the engine.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/compiled_op_impl.h"
#include "backend/exec/engine.h"
#include "ops/collectives/collective_plans.h"
#include "shardwire/communicator.h"

namespace shardwire::internal {

class CommunicatorImpl final : public Communicator {
 public:
  explicit CommunicatorImpl(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~CommunicatorImpl() override { engine_->shutdown(); }

  Rank rank() const override { return engine_->rank(); }
  int worldSize() const override { return engine_->worldSize(); }
  const std::string& groupName() const override { return engine_->groupName(); }
  Duration timeout() const override { return engine_->timeout(); }
  void setTimeout(Duration timeout) override { engine_->setTimeout(timeout); }
  std::uint64_t sequenceNumber() const override { return engine_->sequenceNumber(); }
  std::string describeTransports() const override { return engine_->describeTransports(); }

  Result<std::shared_ptr<CompiledOp>> compileOp(const LocalSpec& spec, std::optional<Duration> timeout) override;

  Result<WorkPtr> barrier(CallOptions call) override;
  Result<WorkPtr> broadcast(TensorView tensor, Rank root, CallOptions call) override;
  Result<WorkPtr> allReduce(TensorView tensor, ReduceOp op, CallOptions call) override;
  Result<WorkPtr> reduce(TensorView tensor, Rank root, ReduceOp op, CallOptions call) override;
  Result<WorkPtr> allGather(TensorView input, std::span<const TensorView> outputs, CallOptions call) override;
  Result<WorkPtr> gather(TensorView input, std::span<const TensorView> outputs, Rank root, CallOptions call) override;
  Result<WorkPtr> scatter(TensorView output, std::span<const TensorView> inputs, Rank root, CallOptions call) override;
  Result<WorkPtr> reduceScatter(TensorView output, std::span<const TensorView> inputs, ReduceOp op, CallOptions call) override;
  Result<WorkPtr> allToAll(std::span<const TensorView> outputs, std::span<const TensorView> inputs, CallOptions call) override;
  Result<WorkPtr> send(TensorView tensor, Rank peer, int tag, CallOptions call) override;
  Result<WorkPtr> recv(TensorView tensor, Rank peer, int tag, CallOptions call) override;

  void abort(const std::string& reason) override;

 private:
  // A plan kept for the next call of the same shape, with its runs and its text.
  struct Kept {
    Kept(std::shared_ptr<const Plan> plan, Description text) : pool(std::move(plan)), description(std::move(text)) {}
    RunPool pool;
    const Description description;
  };
  struct KeyHash {
    std::size_t operator()(const CollectiveKey& key) const { return fingerprintOf(key); }
  };
  struct Call;

  std::shared_ptr<Kept> keptPlan(const CollectiveKey& key);
  std::shared_ptr<PlanRun> makeRun(const CollectiveKey& key, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                                   bool inPlace, std::shared_ptr<Activity> after = nullptr);
  Result<WorkPtr> submit(Call& call, std::span<const std::shared_ptr<Activity>> activities, bool small);
  Result<WorkPtr> runOne(Call& call, const CollectiveKey& key, std::span<const TensorView> inputs, std::span<const TensorView> outputs,
                         bool inPlace);
  Status checkRoot(Rank root, const char* name) const;
  Status checkPeer(Rank peer, const char* name) const;
  Status checkReduction(DType dtype, ReduceOp op, const char* name) const;
  // One tensor per rank, all of `dtype`, each of `numElems` elements (any when negative).
  Status checkList(std::span<const TensorView> tensors, DType dtype, std::int64_t numElems, const char* name, const char* list) const;

  const std::shared_ptr<Engine> engine_;
  std::mutex plansMutex_;
  std::unordered_map<CollectiveKey, std::shared_ptr<Kept>, KeyHash> plans_;
};

}  // namespace shardwire::internal
