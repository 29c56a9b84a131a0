// The classes behind torch's symmetric memory on the CPU. Memory comes from the shared heap when a tensor is made. A
// rendezvous makes a symmetric block of the group, which holds the signal pad and attaches the tensor's pages. So one
// tensor may meet in several groups. Any thread; errors are thrown as StatusError.
#pragma once

#include "backend/c10d/torch_compat.h"
#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/c10d/process_group_shardwire.h"
#include "backend/c10d/without_python.h"
#include "shardwire/communicator.h"
// After shardwire/torch_backend.h.
#if SW_TORCH_HAS_SYMM_BACKENDS
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>
#else
#include <torch/csrc/distributed/c10d/SymmetricMemory.hpp>
#endif

namespace shardwire::internal {

SW_TORCH_VIRTUALS_BEGIN
// torch's "handle": the parts of all ranks of a group, their signal pads, and barriers.
class TorchSymmetricMemory final : public ::c10d::symmetric_memory::SymmetricMemory {
 public:
  // One rank's report about a collective call; see meet().
  struct Call {
    const char* name;
    std::uint64_t fingerprint;          // of the values that must be equal on all ranks
    const std::string& error;           // not empty: why this rank cannot take part
    std::function<std::string()> text;  // the fingerprinted values, for people
  };

  // How many bytes a block has for signal pads of `padBytes`, and how many channels.
  static std::size_t blockBytes(std::size_t padBytes, int worldSize);
  static int channelsOf(std::size_t padBytes, int worldSize);
  TorchSymmetricMemory(std::shared_ptr<shardwire::SymmetricMemory> block,
                       const std::shared_ptr<Communicator>& communicator, std::size_t bytes, std::size_t padBytes);

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return pads_; }
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }  // the CPU is the device
  void** get_signal_pad_ptrs_dev() override { return pads_.data(); }
  std::size_t get_buffer_size() override { return bytes_; }
  bool has_multicast_support() override {
    return false;
  }  // no address stands for all parts at once; the multimem ops work without one
  void* get_multicast_ptr() override { return nullptr; }
  int get_rank() override { return block_->rank(); }
  int get_world_size() override { return block_->worldSize(); }
#if SW_TORCH_HAS_SYMM_BACKENDS
  std::size_t get_offset() override {
    return 0;
  }
  c10::Device get_device() override {
    return c10::Device(c10::DeviceType::CPU);
  }
  const std::vector<int>& get_rank_to_global_rank() override {
    return globalRanks_;
  }
  int* get_rank_to_global_rank_dev() override {
    return globalRanks_.data();
  }
  bool world_within_direct_access() override {
    return true;
  }
#else
  std::size_t get_signal_pad_size() override {
    return padBytes_;
  }
  // `storage_offset` elements into the part of `rank`. Throws RuntimeErrors, as later versions do; the tensors keep the
  // parts alive.
  at::Tensor get_buffer(int rank, c10::IntArrayRef sizes, c10::ScalarType dtype, std::int64_t storageOffset) override;
  // Without sizes all of the pad, without a dtype uint32.
  at::Tensor get_signal_pad(int rank, c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                            std::int64_t storageOffset) override;
#endif

  // timeout_ms 0: the group's timeout. A barrier that reaches its timeout fails the group; a signal does not.
  void barrier(int channel, std::size_t timeoutMs) override;
  void put_signal(int dstRank, int channel, std::size_t timeoutMs) override;
  void wait_signal(int srcRank, int channel, std::size_t timeoutMs) override;

  // ---- for the ops
  std::byte* part(Rank rank) const {
    return block_->attached(rank);
  }
  // Returns when every rank has arrived and all reports are equal; otherwise every rank throws the same error. Stores
  // of any rank before meet() are visible after meet().
  void meet(const Call& call);
  // Returns when every rank has arrived here, too: the parts may be written again.
  void leave(const char* name);
  // The group has ended, or an op of the group left some ranks in a barrier (spoil()): the tensor must meet anew.
  bool isEnded() const {
    return isSpoilt_.load(std::memory_order_relaxed) || communicator_.expired();
  }
  bool isIn(const Communicator& communicator) const {
    return communicator_.lock().get() == &communicator;
  }
  void spoil() {
    isSpoilt_.store(true, std::memory_order_relaxed);
  }

 private:
  std::size_t padWord(int channel, Rank from, const char* what) const;
#if !SW_TORCH_HAS_SYMM_BACKENDS
  at::Tensor tensorAt(const char* what, const std::vector<void*>& places, int rank, std::size_t bytes,
                      c10::IntArrayRef sizes, c10::ScalarType dtype, std::int64_t storageOffset);
#endif
  std::uint64_t* ticket(Rank at, std::uint32_t round, Rank from) const;
  // If a signal interrupts the wait, the op is half done, and the group fails.
  void meetOnOpsChannel(const char* name);
  int opsChannel() const {
    return block_->numChannels() - 1;
  }

  const std::shared_ptr<shardwire::SymmetricMemory> block_;
  const std::weak_ptr<Communicator> communicator_;  // a tensor must not keep a group alive
  const std::size_t bytes_;
  const std::size_t padBytes_;
  std::vector<void*> buffers_;
  std::vector<void*> pads_;
  std::vector<int> globalRanks_;
  std::atomic<bool> isSpoilt_{false};       // relaxed: calls of a group come one after another
  std::atomic<std::uint32_t> meetings_{0};  // relaxed: calls of one tensor come one after another
};
using SymmetricHandle = c10::intrusive_ptr<TorchSymmetricMemory>;

class TorchSymmetricAllocator final : public ::c10d::symmetric_memory::SymmetricMemoryAllocator {
 public:
  // The registered allocator; never destroyed, since tensors may outlive static destructors.
  static const c10::intrusive_ptr<TorchSymmetricAllocator>& instance();

  void* alloc(std::size_t bytes, int device, const std::optional<std::string>& groupName) override;
  void free(void* memory) override;
  std::size_t get_alloc_size(void* memory) override;
  // Null for memory of another allocator, as torch's other allocators return.
  c10::intrusive_ptr<::c10d::symmetric_memory::SymmetricMemory> rendezvous(
      void* memory, const std::optional<std::string>& groupName) override;
  bool has_multicast_support(int) override { return false; }
#if SW_TORCH_HAS_SYMM_BACKENDS
  c10::DeviceType supported_device_type() override {
    return c10::DeviceType::CPU;
  }
  std::string name() override {
    return "shardwire";
  }
  bool has_allocation(void* memory) override;
#endif

  // Collective when this tensor has not met in the group yet. Null as rendezvous().
  SymmetricHandle handleOf(void* memory, const std::optional<std::string>& groupName);
  // Stops every handle of this group from serving ops: all ranks got an error, and some ranks are left in a barrier of
  // one of the handles. The other ranks do not know which handle.
  void spoil(const Communicator& communicator);

 private:
  struct Allocation {
    std::shared_ptr<void> pages;
    std::size_t bytes = 0;
    std::optional<std::string> groupName;
    std::map<std::string, SymmetricHandle, std::less<>> handles;
  };

  Mutex mutex_;
  std::unordered_map<void*, Allocation> allocations_ SW_GUARDED_BY(mutex_);
};
SW_TORCH_VIRTUALS_END

// The shardwire backend of the CPU tensors in torch's group of this name. TypeError if the group has another backend.
c10::intrusive_ptr<ProcessGroupShardwire> groupNamed(const std::string& name, const char* what);
// The handle of a tensor in a group, for an op. ValueError for a tensor that symm_mem.empty() did not make. If the op
// isCollective, all ranks get this error, because the other ranks wait for this rank in the op.
SymmetricHandle handleFor(const at::Tensor& tensor, const std::string& groupName, const char* op,
                          bool isCollective = true);

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
