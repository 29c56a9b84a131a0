// One-sided windows (torch 2.14) over symmetric memory: a window has a tensor in symmetric memory, which every rank can
// write, and a counter of signals for each pair of ranks. Windows are made, and tensors registered, by all ranks in one
// order; the other calls concern two ranks, and any thread may make them. All functions throw StatusError.
#pragma once

#include "backend/c10d/torch_compat.h"

#if SW_TORCH_HAS_WINDOW

#include <memory>
#include <torch/csrc/distributed/c10d/Window.hpp>
#include <vector>

#include "backend/base/mutex.h"
#include "shardwire/communicator.h"

namespace shardwire::internal {

class WindowShardwire final : public ::c10d::Window {
 public:
  using TorchWork = c10::intrusive_ptr<::c10d::Work>;

  // Collective, blocking. jobRanks: the job's rank of each member of the group.
  static c10::intrusive_ptr<WindowShardwire> create(std::shared_ptr<Communicator> communicator,
                                                    std::vector<std::int64_t> jobRanks);
  // Use create(). counters: int64, one for each rank, symmetric, with the job's ranks.
  WindowShardwire(std::shared_ptr<Communicator> communicator, at::Tensor counters);

  // Collective, blocking. The tensor is contiguous, and the same part of one symmetric block on all ranks, made by a
  // group of the same ranks in the same order; otherwise all ranks get an error. owning: the window keeps the memory.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  // Collective, blocking. All puts of all ranks have arrived.
  void tensor_deregister() override;
  // The elements of `tensor` become the elements from `offset` on, in elements, of the window of `peer`. Returns when
  // the elements have arrived, also with isAsync.
  TorchWork put(const at::Tensor& tensor, std::int64_t peer, std::int64_t offset, bool isAsync,
                const ::c10d::PutOptions& options) override;
  // The registered tensor of `rank`. kUnsupported for a rank of another host.
  at::Tensor map_remote_tensor(std::int64_t rank) override;
  // For one wait_signal() of `peer`, which sees this rank's earlier puts.
  TorchWork signal(std::int64_t peer, bool isAsync, const ::c10d::SignalOptions& options) override;
  // Waits for the next signal of `peer`; with isAsync in the Work. Each call, and each Work, takes one signal.
  TorchWork wait_signal(std::int64_t peer, bool isAsync, const ::c10d::WaitSignalOptions& options) override;
  // Unified where map_remote_tensor() works.
  ::c10d::WindowAttr get_attr(std::int64_t peer) override;

 private:
  Rank checkedRank(std::int64_t rank, const char* call) const;
  at::Tensor registered(const char* call) const;

  const std::shared_ptr<Communicator> communicator_;
  const at::Tensor counters_;
  mutable Mutex mutex_;
  at::Tensor owned_ SW_GUARDED_BY(mutex_);
  c10::weak_intrusive_ptr<c10::TensorImpl> known_ SW_GUARDED_BY(mutex_);  // registered, owned or not
  std::vector<std::int64_t> taken_ SW_GUARDED_BY(mutex_);                 // by rank: signals that were waited for
};

}  // namespace shardwire::internal

#endif
