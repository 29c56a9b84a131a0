// Wires the rooms together: exchanges specs, plans, hands runs to the engine. The collectives are in
// communicator_collectives.cc.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/communicator/compiled_op_impl.h"
#include "backend/communicator/flat_tensor.h"
#include "backend/communicator/in_flight.h"
#include "backend/communicator/kernel_choices.h"
#include "backend/communicator/program_cache.h"
#include "backend/exec/engine.h"
#include "backend/exec/message_spin.h"
#include "backend/plans/plan_cache.h"
#include "shardwire/communicator.h"

namespace shardwire::internal {

class CommunicatorImpl final : public Communicator {
 public:
  CommunicatorImpl(std::shared_ptr<Engine> engine, std::vector<ForcedAlgorithm> forced);
  ~CommunicatorImpl() override;

  Rank rank() const override { return engine_->facts().rank; }
  int worldSize() const override { return engine_->facts().worldSize; }
  const std::string& groupName() const override { return engine_->facts().name; }
  Duration timeout() const override;
  void setTimeout(Duration timeout) override;
  std::uint64_t sequenceNumber() const override;
  Status status() const override;
  Status peerStatus(Rank peer) const override;
  std::string describeTransports() const override;
  std::string describeCollectives() const override;

  Result<std::shared_ptr<CompiledOp>> compileOp(const LocalSpec& spec, std::optional<Duration> timeout) override;
  Result<std::shared_ptr<CompiledOp>> attach(const CompiledOp& planned, std::optional<Duration> timeout) override;

  Result<WorkPtr> barrier(CallOptions call) override;
  Result<WorkPtr> broadcast(const TensorView& tensor, Rank root, CallOptions call) override;
  Result<WorkPtr> allReduce(const TensorView& tensor, ReduceOp op, CallOptions call) override;
  Result<WorkPtr> reduce(const TensorView& tensor, Rank root, ReduceOp op, CallOptions call) override;
  Result<WorkPtr> allGather(const TensorView& input, std::span<const TensorView> outputs, CallOptions call) override;
  Result<WorkPtr> gather(const TensorView& input, std::span<const TensorView> outputs, Rank root,
                         CallOptions call) override;
  Result<WorkPtr> scatter(const TensorView& output, std::span<const TensorView> inputs, Rank root,
                          CallOptions call) override;
  Result<WorkPtr> reduceScatter(const TensorView& output, std::span<const TensorView> inputs, ReduceOp op,
                                CallOptions call) override;
  Result<WorkPtr> allToAll(std::span<const TensorView> outputs, std::span<const TensorView> inputs,
                           CallOptions call) override;
  Result<WorkPtr> send(const TensorView& tensor, Rank peer, int tag, CallOptions call) override;
  Result<WorkPtr> recv(const TensorView& tensor, Rank peer, int tag, CallOptions call) override;

  Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const SymmetricRequest& request,
                                                         std::optional<Duration> timeout) override;
  Status symmetricBarrier(std::optional<Duration> timeout) override;
  Result<std::vector<std::string>> exchange(const ExchangeRequest& mine, std::optional<Duration> timeout) override;

  void abort(const std::string& reason) override;
  void revoke(const std::string& notice) override;
  std::string revocation() const override;
  void end() override;
  void setGlobalRanks(std::vector<std::int64_t> ranks) override;

 private:
  // One call: its flat tensors, and objects that must live as long as the call.
  struct Call {
    FlatTensors flat;
    CallOptions options;
    // For Options::checkAll, as given by the caller: the tensor whose shape all ranks have, or the lists of all_to_all.
    const TensorView* like = nullptr;
    std::span<const TensorView> sends = {};
    std::span<const TensorView> receives = {};
    // For the flight recorder, as given by the caller.
    std::span<const TensorView> givenInputs = {};
    std::span<const TensorView> givenOutputs = {};
    std::shared_ptr<void> keepAlive(std::shared_ptr<void> scratch = nullptr) const;
    std::unique_ptr<MemoryUse> newUse(InFlight& inFlight, std::span<const TensorView> inputs,
                                      std::span<const TensorView> outputs) const;
    CallRecord record(Collective kind) const;
  };

  std::shared_ptr<Activity> argumentCheck(const Call& call, const CollectiveCall& collective) const;
  // `inputs` and `outputs` are row-major without gaps, and as `collective` says.
  Result<WorkPtr> start(Call& call, const CollectiveCall& collective, std::span<const TensorView> inputs,
                        std::span<const TensorView> outputs);
  // start() before any check, of a call over lists that repeats the last short one; nothing for all other calls. Of
  // `collective` only the kind, the operation and the root are read.
  std::optional<Result<WorkPtr>> startAgain(Call& call, const CollectiveCall& collective);
  // start() of any other call than the following. `isAlone`: nothing else is in flight.
  Result<WorkPtr> startLong(Call& call, const CollectiveCall& collective, bool isAlone,
                            std::span<const TensorView> inputs, std::span<const TensorView> outputs);
  // start() of a call that is one short stage, over tensors without copies, while nothing else is in flight: mostly
  // over before the return.
  Result<WorkPtr> startShort(Call& call, Collective kind, Activity& run, std::span<const TensorView> inputs,
                             std::span<const TensorView> outputs);
  // One tensor to many, and many to one; the tensors are checked.
  Result<WorkPtr> startGathering(CollectiveCall collective, const TensorView& input,
                                 std::span<const TensorView> outputs, CallOptions options);
  Result<WorkPtr> startScattering(CollectiveCall collective, const TensorView& output,
                                  std::span<const TensorView> inputs, CallOptions options);
  // Every call checks its process first, before any lock: in a child of fork(), a thread missing in the child may have
  // held the lock.
  const OwnerProcess& owner() const { return engine_->facts().owner; }
  Status checkOwner() const { return owner().isHere() ? Status::ok() : owner().check(engine_->facts().label); }
  Status checkMemory(const Call& call) const;
  // The bytes of a message that may end inside its call, without an operation.
  std::optional<std::span<std::byte>> bytesForCall(const TensorView& tensor, const CallOptions& options) const;
  Status checkRoot(Rank root, const char* name) const;
  Status checkPeer(Rank peer, const char* name) const;
  Status checkReduction(DType dtype, ReduceOp op, const char* name) const;
  // The views of the next two are checked by FlatTensors. One tensor like `like` per rank; of gather and scatter, only
  // the root has tensors.
  Status checkPerRank(std::span<const TensorView> tensors, const CollectiveCall& call, const TensorView& like,
                      const char* list) const;
  // One tensor per rank, all of `dtype`, each of `numElems` elements (any when negative).
  Status checkList(std::span<const TensorView> tensors, DType dtype, std::int64_t numElems, const char* name,
                   const char* list) const;

  const std::shared_ptr<Engine> engine_;
  const std::shared_ptr<InFlight> inFlight_ = std::make_shared<InFlight>();
  ProgramCache programs_;
  PlanCache plans_;
  MessageSpin sendSpin_;
  MessageSpin recvSpin_;
  Mutex endMutex_;
  bool hasEnded_ SW_GUARDED_BY(endMutex_) = false;
  Mutex symmetricMutex_;
  std::shared_ptr<SymmetricMemory> barrierWords_
      SW_GUARDED_BY(symmetricMutex_);  // made by the first symmetricBarrier()
};

}  // namespace shardwire::internal
