// The torch.distributed backend: each c10d operation becomes one call on a Communicator. torch routes operations here
// and shares the group with its users. All methods from any thread; operations must be issued in the same order on
// every rank. Errors are thrown as StatusError.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/c10d/tensor_op_impl.h"
#include "backend/c10d/throw_status.h"
#include "backend/c10d/torch_compat.h"
#include "shardwire/communicator.h"
#include "shardwire/export.h"
#include "shardwire/torch_backend.h"

namespace shardwire {
namespace internal {
class DeviceStager;
class HostTensors;
class Membership;
class Observer;
}  // namespace internal

SW_TORCH_VIRTUALS_BEGIN

class SHARDWIRE_EXPORT ProcessGroupShardwire final : public TorchBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;
  using StorePtr = c10::intrusive_ptr<::c10d::Store>;
  using Base = TorchBackend;
  // torch's options of a backend under our name. getBackendOptions() returns the options of a group; split() and
  // merge() take options.
  struct Options final : Base::Options {
    explicit Options(Milliseconds timeout) : Base::Options("shardwire", timeout) {}
    // Virtual from torch 2.14 on. That torch copies the options that a child gets, and without this method the copy
    // would be plain Base::Options.
    c10::intrusive_ptr<Base::Options> clone() const { return c10::make_intrusive<Options>(*this); }
  };

  // Collective over the group: meets the other ranks through `store`. Blocks up to `timeout`, which is also the default
  // timeout of the operations. `isOfOneJob`: one launcher has started all ranks. `statusOfAbsent`: as in Options.
  // `outlivesOthers`: the group does not fail because another group of a peer's process failed (Options::grace).
  // `isBetweenJobs`: the members have no ranks of one job, so no file of the flight recorder has the group.
  static c10::intrusive_ptr<ProcessGroupShardwire> create(const StorePtr& store, int rank, int size,
                                                          Milliseconds timeout, const std::string& groupName,
                                                          bool isOfOneJob = false,
                                                          std::function<Status(Rank)> statusOfAbsent = nullptr,
                                                          bool outlivesOthers = false, bool isBetweenJobs = false);
  // For a group that consists of these ranks of this group: Options::statusOfAbsent. Does not keep this group alive.
  std::function<Status(Rank)> statusOfMembers(std::vector<std::int64_t> ranks) const;
  // Use create().
  ProcessGroupShardwire(std::shared_ptr<Communicator> communicator, int rank, int size, std::size_t stagingBytes);
  ~ProcessGroupShardwire() override;

  const std::string getBackendName() const override { return "shardwire"; }
  // Throws kAborted after shutdown().
  std::shared_ptr<Communicator> communicator() const;
  // The job's rank of each member if the maker of the group set them; otherwise 0, 1, 2...
  std::vector<std::int64_t> globalRanks() const;
  void setGlobalRanks(std::vector<std::int64_t> ranks);
  // The backend name before operations in profiles, as in "shardwire:all_reduce". The name is gloo's where the group
  // replaces gloo. A literal; set before the first operation. Groups made from this one inherit the name.
  void setProfiledAs(const char* backend) { profiledAs_ = backend; }
  // Collective, blocking.
  std::unique_ptr<internal::TensorOpShardwire> compileOp(const LocalSpec& spec,
                                                         std::optional<Duration> timeout = std::nullopt);
  std::unique_ptr<internal::TensorOpShardwire> attach(const CompiledOp& planned,
                                                      std::optional<Duration> timeout = std::nullopt);

  TorchWork broadcast(Tensors& tensors, const ::c10d::BroadcastOptions& options = {}) override;
  TorchWork allreduce(Tensors& tensors, const ::c10d::AllreduceOptions& options = {}) override;
  TorchWork allreduce_coalesced(Tensors& tensors, const ::c10d::AllreduceCoalescedOptions& options = {}) override;
  TorchWork reduce(Tensors& tensors, const ::c10d::ReduceOptions& options = {}) override;
  TorchWork allgather(TensorLists& outputs, Tensors& inputs, const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork _allgather_base(at::Tensor& output, at::Tensor& input,
                            const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                const ::c10d::AllgatherOptions& options = {}) override;
  TorchWork allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const ::c10d::AllgatherOptions& options = {});
  TorchWork gather(TensorLists& outputs, Tensors& inputs, const ::c10d::GatherOptions& options = {}) override;
  TorchWork scatter(Tensors& outputs, TensorLists& inputs, const ::c10d::ScatterOptions& options = {}) override;
  TorchWork reduce_scatter(Tensors& outputs, TensorLists& inputs,
                           const ::c10d::ReduceScatterOptions& options = {}) override;
  TorchWork _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                 const ::c10d::ReduceScatterOptions& options = {}) override;
  TorchWork reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                            const ::c10d::ReduceScatterOptions& options = {});
  TorchWork alltoall(Tensors& outputs, Tensors& inputs, const ::c10d::AllToAllOptions& options = {}) override;
  TorchWork alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& outputSplits,
                          std::vector<std::int64_t>& inputSplits, const ::c10d::AllToAllOptions& options = {}) override;
  TorchWork send(Tensors& tensors, int peer, int tag) override;
  TorchWork recv(Tensors& tensors, int peer, int tag) override { return receive(tensors, peer, tag); }
  TorchWork recvAnysource(Tensors& tensors, int tag) override;
  TorchWork barrier(const ::c10d::BarrierOptions& options = {}) override;
  // Rank 0 receives a report from each rank and sends all ranks the list of late ranks. The error names the first late
  // rank, or every late rank. The group stays usable.
  void monitoredBarrier(const ::c10d::BarrierOptions& options, bool waitAllRanks = false) override;
  // For sparse COO tensors; allreduce() forwards such tensors to this method. Sums (or averages) the entries with equal
  // indices; the result is coalesced.
  TorchWork allreduce_sparse(Tensors& tensors, const ::c10d::AllreduceOptions& options = {});

  // Operations issued between the two calls start at once; endCoalescing returns one Work for all of them.
  bool supportsCoalescing() const { return internal::kTorchCoalesces; }
  void startCoalescing() override;
  TorchWork endCoalescing();

  // The group of some ranks of this group. Each rank of `ranks` calls split() with equal arguments; the position in
  // `ranks` is the new rank. Blocks until these ranks have met. Null on a rank outside `ranks`.
  bool supportsSplitting() const { return true; }
  c10::intrusive_ptr<Base> split(const StorePtr& store, const std::vector<int>& ranks,
                                 const c10::intrusive_ptr<Base::Options>& options);
  // A new group of all ranks that share `store`, no matter to which groups these ranks belong.
  c10::intrusive_ptr<Base> merge(const StorePtr& store, const c10::intrusive_ptr<Base::Options>& options,
                                 const int& rank, const int& size);
  // supportsShrinking() stays false: torch 2.13 gives a shrunken group of CPU tensors the type of gloo's groups, and
  // then treats the object as one of gloo's.
  c10::intrusive_ptr<Base::Options> getBackendOptions();

  // An allocator of tensors in the shared heap, which move between ranks in one copy.
  std::shared_ptr<c10::Allocator> getMemAllocator();
  at::Tensor allocateTensor(long size, at::TensorOptions options = {});
  bool supportsTensorAlloc(c10::DeviceIndex device) { return device < 0; }  // the CPU has no index

  void setSequenceNumberForGroup() override {}  // ours starts at 0 on every rank
  std::uint64_t getSequenceNumberForGroup() override { return communicator()->sequenceNumber(); }
  // From this call on, works have a getDuration().
  void enableCollectivesTiming();
#if SW_TORCH_HAS_WORK_INFO
  // The hook is called after each operation that begins later, on the thread that notices the end. An exception of the
  // hook is logged.
  void registerOnCompletionHook(std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) override;
#endif
  // Blocks until every operation that began after a hook was registered (or timing enabled) is over and its hook has
  // run.
  void waitForPendingWorks();
#if SW_TORCH_HAS_ERROR_TYPE
  // The kind of error of an operation that was waited for or refused; SUCCESS without such an error.
  ::c10d::ErrorType getError() override;
#endif
  void setTimeout(Milliseconds timeout);
  // Fails every pending and later operation on this rank. Idempotent.
  void abort();
  // Communicator::revoke(). Throws kAborted after shutdown().
  void revoke(const std::string& notice = "") {
    communicator()->revoke(notice);
  }
  // Communicator::revocation(). After shutdown() the last notice; throws kAborted where there was none.
  std::string revocation() const;
  // For a group that is finished: pending and later operations fail on this rank. Other ranks notice only when they
  // need this rank. Idempotent. Does nothing in a child of fork(), where the group belongs to the parent, like abort().
  void shutdown();
  // torch calls this method when the last reference goes. Torch 1.13 ends a group in no other way, and with a weak
  // reference to the group the destructor runs much later. So the group's staging memory, the user's hook and the
  // membership are released here.
  void release_resources() override;

#if SW_TORCH_HAS_RECONFIGURE
  // A group without members, for init_process_group(..., enable_reconfigure=True). Every operation is refused before
  // reconfigure(); until then getRank() and getSize() return `rank` and `size`. `timeout`: of operations.
  static c10::intrusive_ptr<ProcessGroupShardwire> createReconfigurable(
      std::shared_ptr<internal::Membership> membership, int rank, int size, Milliseconds timeout,
      const std::string& groupName);
  bool supportsReconfigure() const {
    return reconfigurable_ != nullptr;
  }
  std::string get_reconfigure_handle() const;
  // The group ends for its present members: their pending operations fail on this rank, and compiled ops, symmetric
  // memory and queues of the group end. Then the group gets the members of these handles. Collective among the new
  // members. Blocks until all have met, at most `options.timeout`, or the group's timeout; the returned Work is a
  // barrier of the new members. After an exception the group has no members, and reconfigure() may be called again with
  // a new uuid. No other thread may be in a call of the group.
  TorchWork reconfigure(const ::c10d::ReconfigureOptions& options);
#endif
#if SW_TORCH_HAS_WINDOW
  bool supportsWindow() const {
    return true;
  }
  // Collective, blocking: window.h. `tensor` is registered, and owned by the window.
  c10::intrusive_ptr<::c10d::Window> new_window(const std::optional<at::Tensor>& tensor);
#endif

 private:
  struct Call;
  class Present;
  struct Reconfigurable;
  static ::shardwire::Options optionsFor(Milliseconds timeout);
  static std::shared_ptr<Communicator> connect(const StorePtr& store, int rank, int size,
                                               const ::shardwire::Options& options, const std::string& groupName);
  // kInterrupted when a signal ended the wait for devices; the group ends in that case, too.
  Status end();
  Status endCommunicator();
  std::shared_ptr<Communicator> communicatorOrNull() const;
  Status whyNone() const SW_REQUIRES(mutex_);
  // A wait in the middle of a call: after an interruption there the call is half done, so the group fails.
  void waitInside(::c10d::Work& work, const char* name);
  template <typename Issue>
  TorchWork start(Call call, internal::OperationTensors tensors, internal::HostTensors& host, Milliseconds timeout,
                  Issue&& issue);
  TorchWork allgatherUneven(Call call, const Tensors& list, const at::Tensor& input, Milliseconds timeout);
  TorchWork reduceScatterUneven(Call call, const at::Tensor& output, const Tensors& list, ReduceOp op,
                                Milliseconds timeout);
  TorchWork receive(Tensors& tensors, int peer, int tag);
  c10::intrusive_ptr<ProcessGroupShardwire> groupOfRanks(const StorePtr& store, const std::vector<int>& ranks,
                                                         Milliseconds timeout, const std::string& name);
  std::size_t sizeAsCount() const {
    return static_cast<std::size_t>(getSize());
  }

  const internal::OwnerProcess owner_;
  std::shared_ptr<internal::Observer> observer_;  // null after release_resources(), like the stager
  const std::shared_ptr<Present> present_;
  std::shared_ptr<internal::DeviceStager> stager_;
  const char* profiledAs_ = "shardwire";
  std::atomic<std::uint32_t> monitoredBarriers_ = 0;  // relaxed: a count alone
  mutable internal::Mutex mutex_;
  std::shared_ptr<Communicator> communicator_ SW_GUARDED_BY(mutex_);  // null after shutdown, and without members
  std::string lastNotice_ SW_GUARDED_BY(mutex_);                      // of a communicator that was ended
  std::map<std::string, int> groupsMade_ SW_GUARDED_BY(mutex_);       // by ranks and name: groups made from this group
  std::vector<std::int64_t> globalRanks_ SW_GUARDED_BY(mutex_);
  std::shared_ptr<Reconfigurable> reconfigurable_;  // set before any other thread has the group
  bool isOfOneJob_ = false;                         // set before any other thread has the group
  std::atomic<bool> coalescing_ = false;            // relaxed: set and read by the thread that issues operations
  std::vector<WorkPtr> coalesced_ SW_GUARDED_BY(mutex_);
  internal::OperationTensors coalescedTensors_ SW_GUARDED_BY(mutex_);
};
SW_TORCH_VIRTUALS_END

namespace internal {
// Torch's value of a reduction.
::c10d::ReduceOp torchReduction(ReduceOp op);
}  // namespace internal

}  // namespace shardwire
