// Wires the rooms together: exchanges specs, plans, hands runs to the engine. The collectives are in communicator_collectives.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/compiled_op_impl.h"
#include "backend/exec/engine.h"
#include "backend/flat_tensor.h"
#include "backend/program_cache.h"
#include "shardwire/communicator.h"

namespace shardwire::internal {

class CommunicatorImpl final : public Communicator {
 public:
  CommunicatorImpl(std::shared_ptr<Engine> engine, std::vector<ForcedAlgorithm> forced);
  ~CommunicatorImpl() override { engine_->shutdown(); }

  Rank rank() const override { return engine_->rank(); }
  int worldSize() const override { return engine_->worldSize(); }
  const std::string& groupName() const override { return engine_->groupName(); }
  Duration timeout() const override { return engine_->timeout(); }
  void setTimeout(Duration timeout) override { engine_->setTimeout(timeout); }
  std::uint64_t sequenceNumber() const override { return engine_->sequenceNumber(); }
  Status status() const override { return engine_->status(); }
  std::string describeTransports() const override { return engine_->describeTransports(); }
  std::string describeCollectives() const override;

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
  // One call: its flat tensors and what must live as long as it.
  struct Call {
    CallOptions options;
    FlatTensors flat;
    std::shared_ptr<void> keepAlive(std::shared_ptr<void> scratch = nullptr) const;
  };

  // `inputs` and `outputs` are flat, contiguous and as `collective` says.
  Result<WorkPtr> start(Call& call, const CollectiveCall& collective, std::span<const TensorView> inputs,
                        std::span<const TensorView> outputs);
  // One tensor to many, and many to one; the tensors are checked.
  Result<WorkPtr> startGathering(CollectiveCall collective, TensorView input, std::span<const TensorView> outputs, CallOptions options);
  Result<WorkPtr> startScattering(CollectiveCall collective, TensorView output, std::span<const TensorView> inputs, CallOptions options);
  Status checkRoot(Rank root, const char* name) const;
  Status checkPeer(Rank peer, const char* name) const;
  Status checkReduction(DType dtype, ReduceOp op, const char* name) const;
  // On the root one tensor like `like` per rank, on the others none.
  Status checkRootList(std::span<const TensorView> tensors, const TensorView& like, Rank root, const char* name, const char* list) const;
  // One tensor per rank, all of `dtype`, each of `numElems` elements (any when negative).
  Status checkList(std::span<const TensorView> tensors, DType dtype, std::int64_t numElems, const char* name, const char* list) const;

  const std::shared_ptr<Engine> engine_;
  ProgramCache programs_;
};

}  // namespace shardwire::internal
