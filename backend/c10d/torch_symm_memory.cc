// The handle comes first: signals and barriers on the words of a symmetric block, tensors over the parts, and meet(),
// by which all ranks of an op agree or get the same error. Then the allocator: alloc() takes pages of the shared heap,
// and handleOf() makes the block of a tensor at its first rendezvous in a group. At the end the functions that find our
// group and a tensor's handle behind torch's names.
#include "backend/c10d/torch_symm_memory.h"

#if SW_TORCH_HAS_SYMMETRIC_MEMORY

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include "backend/c10d/throw_status.h"
#include "backend/symm/heap_pages.h"
#if !SW_TORCH_HAS_SYMM_BACKENDS
// After shardwire/torch_backend.h.
#include <ATen/ops/from_blob.h>
#endif

namespace shardwire::internal {
namespace {

namespace torch_symm = ::c10d::symmetric_memory;

constexpr std::size_t kTicketLine = 64;

std::optional<Duration> timeoutOf(std::size_t milliseconds) {
  constexpr std::size_t kLongest = std::size_t{1000} * 3600 * 24 * 365 * 30;
  return milliseconds == 0 ? std::nullopt
                           : std::optional<Duration>(std::chrono::milliseconds(std::min(milliseconds, kLongest)));
}

std::size_t signalPadBytes() {
#if SW_TORCH_HAS_SYMM_BACKENDS
  return torch_symm::get_signal_pad_size();
#else
  return std::size_t{32} * 72 * sizeof(std::uint32_t);  // the value with which later versions begin
#endif
}

std::size_t ticketsAt(std::size_t padBytes) {
  return (padBytes + kTicketLine - 1) / kTicketLine * kTicketLine;
}

}  // namespace

// ---- the handle

int TorchSymmetricMemory::channelsOf(std::size_t padBytes, int worldSize) {
  return static_cast<int>(padBytes / sizeof(std::uint32_t) / static_cast<std::size_t>(worldSize));
}

std::size_t TorchSymmetricMemory::blockBytes(std::size_t padBytes, int worldSize) {
  return ticketsAt(padBytes) + 2 * static_cast<std::size_t>(worldSize) * sizeof(std::uint64_t);
}

TorchSymmetricMemory::TorchSymmetricMemory(std::shared_ptr<shardwire::SymmetricMemory> block,
                                           const std::shared_ptr<Communicator>& communicator, std::size_t bytes,
                                           std::size_t padBytes)
    : block_(std::move(block)), communicator_(communicator), bytes_(bytes), padBytes_(padBytes) {
  for (Rank rank = 0; rank < block_->worldSize(); ++rank) {
    buffers_.push_back(block_->attached(rank));
    pads_.push_back(block_->address(rank));
    globalRanks_.push_back(static_cast<int>(block_->jobRanks()[static_cast<std::size_t>(rank)]));
  }
}

std::size_t TorchSymmetricMemory::padWord(int channel, Rank from, const char* what) const {
  const int numChannels = opsChannel();
  if (channel < 0 || channel >= numChannels) {
    refuseCall(StatusCode::kInvalidArgument,
               "{}: channel {} is out of range: a signal pad of {} bytes has channels 0 to {} for {} ranks", what,
               channel, padBytes_, numChannels - 1, block_->worldSize());
  }
  return static_cast<std::size_t>(channel * block_->worldSize() + from) * sizeof(std::uint32_t);
}

void TorchSymmetricMemory::barrier(int channel, std::size_t timeoutMs) {
  (void)padWord(channel, 0, "barrier");
  const WithoutPython released;
  throwUnlessOk(block_->barrier(channel, timeoutOf(timeoutMs)));
}

void TorchSymmetricMemory::put_signal(int dstRank, int channel, std::size_t timeoutMs) {
  const std::size_t word = padWord(channel, block_->rank(), "put_signal");
  const WithoutPython released;
  throwUnlessOk(block_->stepWord("put_signal", dstRank, word, 0, 1, dstRank, timeoutOf(timeoutMs)));
}

void TorchSymmetricMemory::wait_signal(int srcRank, int channel, std::size_t timeoutMs) {
  if (srcRank < 0 || srcRank >= block_->worldSize()) {  // before the rank is used as a position in the pad
    refuseCall(StatusCode::kInvalidArgument, "wait_signal: rank {} is out of range: the group has {} ranks, 0 to {}",
               srcRank, block_->worldSize(), block_->worldSize() - 1);
  }
  const std::size_t word = padWord(channel, srcRank, "wait_signal");
  const WithoutPython released;
  throwUnlessOk(block_->stepWord("wait_signal", block_->rank(), word, 1, 0, srcRank, timeoutOf(timeoutMs)));
}

#if !SW_TORCH_HAS_SYMM_BACKENDS
at::Tensor TorchSymmetricMemory::tensorAt(const char* what, const std::vector<void*>& places, int rank,
                                          std::size_t bytes, c10::IntArrayRef sizes, c10::ScalarType dtype,
                                          std::int64_t storageOffset) {
  TORCH_CHECK(rank >= 0 && rank < block_->worldSize(), what, ": rank ", rank, " is out of range: the group has ",
              block_->worldSize(), " ranks");
  TORCH_CHECK(storageOffset >= 0, what, ": storage_offset is ", storageOffset, "; it must not be negative");
  const std::size_t room = bytes / c10::elementSize(dtype);
  std::size_t elements = 1;
  const bool isEmpty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
  for (const std::int64_t size : sizes) {
    TORCH_CHECK(size >= 0, what, ": a size is ", size, "; it must not be negative");
    // Divided, not multiplied: a product can wrap around to a number that fits.
    const bool fits = isEmpty || static_cast<std::size_t>(size) <= room / elements;
    elements = isEmpty ? 0 : elements * static_cast<std::size_t>(size);
    TORCH_CHECK(fits, what, ": ", sizes, " elements of ", dtype, " are more than the ", bytes, " bytes that there are");
  }
  TORCH_CHECK(static_cast<std::size_t>(storageOffset) <= room - elements, what, ": ", sizes, " elements of ", dtype,
              " from element ", storageOffset, " on are more than the ", bytes, " bytes that there are");
  auto* const begin = static_cast<std::byte*>(places[static_cast<std::size_t>(rank)]) +
                      static_cast<std::size_t>(storageOffset) * c10::elementSize(dtype);
  const auto self = c10::intrusive_ptr<TorchSymmetricMemory>::reclaim_copy(this);
  return at::from_blob(
      begin, sizes, [self](void*) {}, at::TensorOptions().dtype(dtype).device(c10::DeviceType::CPU));
}

at::Tensor TorchSymmetricMemory::get_buffer(int rank, c10::IntArrayRef sizes, c10::ScalarType dtype,
                                            std::int64_t storageOffset) {
  return tensorAt("get_buffer", buffers_, rank, bytes_, sizes, dtype, storageOffset);
}

at::Tensor TorchSymmetricMemory::get_signal_pad(int rank, c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                                                std::int64_t storageOffset) {
  const c10::ScalarType type = dtype.value_or(c10::ScalarType::UInt32);
  const auto whole = static_cast<std::int64_t>(padBytes_ / c10::elementSize(type));
  return tensorAt("get_signal_pad", pads_, rank, padBytes_, sizes.empty() ? c10::IntArrayRef(whole) : sizes, type,
                  storageOffset);
}
#endif

std::uint64_t* TorchSymmetricMemory::ticket(Rank at, std::uint32_t round, Rank from) const {
  auto* const tickets = reinterpret_cast<std::uint64_t*>(block_->address(at) + ticketsAt(padBytes_));
  return tickets + (round & 1) * static_cast<std::uint32_t>(block_->worldSize()) + from;
}

// Each rank writes a ticket to every other rank before the barrier, and compares all tickets after the barrier. All
// ranks see the same tickets, so all ranks come to the same result. A rank is at most one barrier ahead, so two sets of
// tickets are enough. Relaxed: the barrier orders the tickets.
void TorchSymmetricMemory::meet(const Call& call) {
  const WithoutPython released;
  const std::uint32_t round = meetings_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t mine = call.error.empty() ? call.fingerprint | 1 : 0;
  const Rank self = block_->rank();
  for (Rank rank = 0; rank < block_->worldSize(); ++rank) {
    std::atomic_ref(*ticket(rank, round, self)).store(mine, std::memory_order_relaxed);
  }
  meetOnOpsChannel(call.name);
  bool areAlike = mine != 0;
  for (Rank rank = 0; rank < block_->worldSize() && areAlike; ++rank) {
    areAlike = std::atomic_ref(*ticket(self, round, rank)).load(std::memory_order_relaxed) == mine;
  }
  if (areAlike) {
    return;
  }
  const std::shared_ptr<Communicator> communicator = communicator_.lock();
  if (communicator == nullptr) {
    refuseCall(StatusCode::kAborted, "{}: the group was ended", call.name);
  }
  ExchangeRequest report{.what = "symm_mem op"};
  if (call.error.empty()) {
    report.text = call.text();  // the ranks may even have called different ops
  } else {
    report.error = Status(StatusCode::kInvalidArgument, fmt::format("{}: {}", call.name, call.error));
  }
  throwUnlessOk(communicator->exchange(report).status());
  refuseCall(StatusCode::kInternal, "{}: the ranks' tickets differ, but their reports are equal", call.name);
}

void TorchSymmetricMemory::leave(const char* name) {
  const WithoutPython released;
  meetOnOpsChannel(name);
}

void TorchSymmetricMemory::meetOnOpsChannel(const char* name) {
  Status met = block_->barrier(opsChannel(), std::nullopt, true);
  if (met.code() == StatusCode::kMismatch) {
    // A rank cannot come, and reports the reason through makeSymmetric(): all ranks receive the reason there, and the
    // op is over.
    if (const std::shared_ptr<Communicator> communicator = communicator_.lock(); communicator != nullptr) {
      const Status agreed = communicator->makeSymmetric({.bytes = 0, .text = name}).status();
      TorchSymmetricAllocator::instance()->spoil(*communicator);
      throwUnlessOk(agreed);
    }
  }
  if (met.code() == StatusCode::kInterrupted) {
    if (const std::shared_ptr<Communicator> communicator = communicator_.lock(); communicator != nullptr) {
      communicator->abort(fmt::format("{} was interrupted by a signal (Ctrl-C?)", name));
    }
  }
  throwUnlessOk(std::move(met));
}

// ---- the allocator

const c10::intrusive_ptr<TorchSymmetricAllocator>& TorchSymmetricAllocator::instance() {
  // Never destroyed: torch's table releases its reference at exit.
  static const auto* const kept =
      new c10::intrusive_ptr<TorchSymmetricAllocator>(c10::make_intrusive<TorchSymmetricAllocator>());
  return *kept;
}

void* TorchSymmetricAllocator::alloc(std::size_t bytes, int, const std::optional<std::string>& groupName) {
  // At least one byte: an allocation is identified by its address.
  Allocation made{valueOrThrow(allocatePages(std::max<std::size_t>(bytes, 1))), bytes, groupName, {}};
  void* const memory = made.pages.get();
  const MutexLock lock(mutex_);
  allocations_.insert_or_assign(memory, std::move(made));
  return memory;
}

void TorchSymmetricAllocator::free(void* memory) {
  Allocation gone;  // freed outside of the lock
  const MutexLock lock(mutex_);
  if (const auto found = allocations_.find(memory); found != allocations_.end()) {
    gone = std::move(found->second);
    allocations_.erase(found);
  }
}

std::size_t TorchSymmetricAllocator::get_alloc_size(void* memory) {
  const MutexLock lock(mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) {
    refuseCall(StatusCode::kInvalidArgument, "get_alloc_size: the memory is not symmetric memory of shardwire's");
  }
  return found->second.bytes;
}

#if SW_TORCH_HAS_SYMM_BACKENDS
bool TorchSymmetricAllocator::has_allocation(void* memory) {
  const MutexLock lock(mutex_);
  return allocations_.contains(memory);
}
#endif

c10::intrusive_ptr<torch_symm::SymmetricMemory> TorchSymmetricAllocator::rendezvous(
    void* memory, const std::optional<std::string>& groupName) {
  return handleOf(memory, groupName);
}

SymmetricHandle TorchSymmetricAllocator::handleOf(void* memory, const std::optional<std::string>& groupName) {
  std::shared_ptr<void> pages;
  std::size_t bytes = 0;
  std::string name;
  SymmetricHandle handle;
  {
    const MutexLock lock(mutex_);
    const auto found = allocations_.find(memory);
    if (found == allocations_.end()) {
      return {};
    }
    Allocation& allocation = found->second;
    if (!groupName.has_value() && !allocation.groupName.has_value()) {
      refuseCall(StatusCode::kInvalidArgument, "rendezvous: give the group: the tensor was made without one");
    }
    name = groupName.has_value() ? *groupName : *allocation.groupName;
    if (const auto known = allocation.handles.find(name); known != allocation.handles.end()) {
      handle = known->second;
    }
    pages = allocation.pages;
    bytes = allocation.bytes;
  }
  const auto group = groupNamed(name, "rendezvous");
  const auto communicator = group->communicator();
  // An earlier group of this name may live on here, in a variable, and not on the other ranks.
  if (handle && !handle->isEnded() && handle->isIn(*communicator)) {
    return handle;
  }
  const std::size_t padBytes = signalPadBytes();
  const int numChannels = TorchSymmetricMemory::channelsOf(padBytes, communicator->worldSize());
  SymmetricRequest request{.bytes = TorchSymmetricMemory::blockBytes(padBytes, communicator->worldSize()),
                           .text = fmt::format("{} bytes and a signal pad of {}", bytes, padBytes),
                           .isZeroed = true,
                           .jobRanks = group->globalRanks(),
                           .numChannels = numChannels + 1,  // the last channel is for the ops
                           .needsAll = true,
                           .attached = pages,
                           .attachedBytes = wholePages(std::max<std::size_t>(bytes, 1))};
  if (numChannels < 1) {
    request.localError =
        fmt::format("a signal pad of {} bytes has no word for each of {} ranks: call set_signal_pad_size()", padBytes,
                    communicator->worldSize());
    request.numChannels = 1;
  }
  {
    const WithoutPython released;
    auto made = communicator->makeSymmetric(request);
    if (!made.isOk()) {
      spoil(*communicator);
    }
    handle = c10::make_intrusive<TorchSymmetricMemory>(valueOrThrow(std::move(made)), communicator, bytes, padBytes);
  }
  SymmetricHandle old;  // freed outside of the lock
  const MutexLock lock(mutex_);
  if (const auto found = allocations_.find(memory); found != allocations_.end()) {
    old = std::exchange(found->second.handles[name], handle);
  }
  return handle;
}

void TorchSymmetricAllocator::spoil(const Communicator& communicator) {
  const MutexLock lock(mutex_);
  for (auto& [memory, allocation] : allocations_) {
    for (auto& [name, handle] : allocation.handles) {
      if (handle->isIn(communicator)) {
        handle->spoil();
      }
    }
  }
}

// ---- from torch's names

c10::intrusive_ptr<ProcessGroupShardwire> groupNamed(const std::string& name, const char* what) {
  const auto backend = ::c10d::resolve_process_group(name)->getBackend(c10::DeviceType::CPU);
  auto* const ours = dynamic_cast<ProcessGroupShardwire*>(backend.get());
  if (ours == nullptr) {
    refuseCall(StatusCode::kTypeError,
               "{}: the backend of group '{}' for CPU tensors is '{}'; symmetric memory on the CPU needs a "
               "group of backend 'shardwire'",
               what, name, backend->getBackendName());
  }
  return c10::intrusive_ptr<ProcessGroupShardwire>::reclaim_copy(ours);
}

SymmetricHandle handleFor(const at::Tensor& tensor, const std::string& groupName, const char* op, bool isCollective) {
  SymmetricHandle handle;
  if (tensor.defined() && tensor.device().is_cpu() && tensor.has_storage()) {
    handle = TorchSymmetricAllocator::instance()->handleOf(tensor.storage().data_ptr().get(), groupName);
  }
  if (handle) {
    return handle;
  }
  const std::string error = fmt::format(
      "{}: the tensor does not lie in torch's symmetric memory: make it by "
      "torch.distributed._symmetric_memory.empty(..., device=\"cpu\") on all ranks",
      op);
  if (isCollective) {
    // The other ranks are in the op, or first in the rendezvous of their tensor: either way they receive this error.
    const auto communicator = groupNamed(groupName, op)->communicator();
    const WithoutPython released;
    const Status agreed = communicator->makeSymmetric({.text = op, .localError = error}).status();
    TorchSymmetricAllocator::instance()->spoil(*communicator);
    throwUnlessOk(agreed);
  }
  refuseCall(StatusCode::kInvalidArgument, "{}", error);
}

}  // namespace shardwire::internal

#endif  // SW_TORCH_HAS_SYMMETRIC_MEMORY
