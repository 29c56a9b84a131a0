// The torch.distributed backend: each c10d operation as one call on a Communicator. torch routes operations here and shares it with its
// users. All methods from any thread; operations must be issued in the same order on every rank. Errors are thrown as StatusError.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/c10d/status_error.h"
#include "backend/c10d/tensor_op.h"
#include "backend/c10d/torch_compat.h"
#include "shardwire/communicator.h"

#include SW_TORCH_GROUP_HEADER

namespace shardwire {

SW_TORCH_VIRTUALS_BEGIN
class __attribute__((visibility("default"))) ProcessGroupShardwire final : public SW_TORCH_GROUP_BASE {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // Collective over the group: meets the other ranks through `store`. Blocks up to `timeout`, which is also the operations' default.
  static c10::intrusive_ptr<ProcessGroupShardwire> create(const c10::intrusive_ptr<::c10d::Store>& store, int rank, int size,
                                                          Milliseconds timeout, const std::string& groupName);
  // Use create().
  ProcessGroupShardwire(std::shared_ptr<Communicator> communicator, int rank, int size);
  ~ProcessGroupShardwire() override;

  const std::string getBackendName() const override { return "shardwire"; }
  // Throws kAborted after shutdown().
  std::shared_ptr<Communicator> communicator() const;
  // The job's rank of each member, when the maker of the group said it; else 0, 1, 2...
  std::vector<std::int64_t> globalRanks() const;
  void setGlobalRanks(std::vector<std::int64_t> ranks);
  // Collective, blocking.
  std::unique_ptr<TensorOp> compileOp(const LocalSpec& spec, std::optional<Duration> timeout = std::nullopt);

  TorchWork broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options = {}) override;
  TorchWork allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options = {}) override;
  TorchWork allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options = {}) override;
  TorchWork reduce(Tensors& tensors, const ::c10d::ReduceOptions& options = {}) override;
  TorchWork allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork _allgather_base(at::Tensor& output, at::Tensor& input, const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork allgather_coalesced(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options = {});
  TorchWork gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options = {}) override;
  TorchWork scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options = {}) override;
  TorchWork reduce_scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ReduceScatterOptions& options = {}) override;
  TorchWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const ::c10d::ReduceScatterOptions& options = {}) override;
  TorchWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const ::c10d::ReduceScatterOptions& options = {});
  TorchWork alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options = {}) override;
  TorchWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                          std::vector<std::int64_t>& inputSplits, const ::c10d::AllToAllOptions& options = {}) override;
  TorchWork send(Tensors& tensors, int peer, int tag) override;
  TorchWork recv(Tensors& tensors, int peer, int tag) override;
  TorchWork recvAnysource(Tensors& tensors, int tag) override;
  TorchWork barrier(const ::c10d::BarrierOptions& options = {}) override;
  // A barrier whose error names the ranks that did not arrive; `waitAllRanks` changes nothing, they are always all named.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks = false) override;

  // Operations issued between the two calls start at once; endCoalescing returns one Work for all of them.
  void startCoalescing() override;
  TorchWork endCoalescing();

  void setSequenceNumberForGroup() override {}  // ours starts at 0 on every rank
  std::uint64_t getSequenceNumberForGroup() override;
  void setTimeout(Milliseconds timeout);
  // Fails every pending and later operation on this rank. Idempotent.
  void abort();
  // For a group that is finished: pending and later operations fail on this rank. Others notice only when they need this rank. Idempotent.
  void shutdown();

 private:
  struct Call;
  template <typename Issue>
  TorchWork start(Call call, internal::OperationTensors tensors, Milliseconds timeout, Issue&& issue);
  TorchWork allgatherUneven(Call call, const Tensors& list, const at::Tensor& input, Milliseconds timeout);
  TorchWork reduceScatterUneven(Call call, const at::Tensor& output, const Tensors& list, ReduceOp op, Milliseconds timeout);
  TorchWork receive(Tensors& tensors, int peer, int tag);
  std::size_t sizeAsCount() const { return static_cast<std::size_t>(getSize()); }

  mutable std::mutex mutex_;
  std::shared_ptr<Communicator> communicator_;   // guarded by mutex_; null after shutdown
  std::vector<std::int64_t> globalRanks_;        // guarded by mutex_
  std::atomic<bool> coalescing_ = false;         // relaxed: set and read by the thread that issues operations
  std::vector<WorkPtr> coalesced_;               // guarded by mutex_
  internal::OperationTensors coalescedTensors_;  // guarded by mutex_
};
SW_TORCH_VIRTUALS_END

}  // namespace shardwire
