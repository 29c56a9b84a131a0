// The heap is one memfd, as large as the address space allows, mapped once; pages are allocated at the first touch.
// Blocks up to 64 KiB come from slabs (SmallBlocks), larger blocks are extents (ExtentMap). The tables are in ordinary
// memory, where no peer can write. Freed extents keep their pages for the next block, up to a limit. Beyond the limit
// the oldest pages are returned to the system, outside of the lock. After fork() the heap belongs to the parent: the
// child maps the heap copy-on-write, frees no blocks of the parent, and gets a heap of its own at the first request.
#include "backend/memory/shared_heap.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "backend/base/log.h"
#include "backend/base/mapping.h"
#include "backend/base/memfd.h"
#include "backend/base/mutex.h"
#include "backend/base/page_size.h"
#include "backend/base/system_error.h"
#include "backend/memory/extent_map.h"
#include "backend/memory/huge_pages.h"
#include "backend/memory/small_blocks.h"
#include "shardwire/options.h"

namespace shardwire::internal {
namespace {

// Larger blocks get their memory at the first touch, since a program may allocate much and use little.
constexpr std::size_t kMostBackedAtOnce = std::size_t{1} << 30;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kLeastAutoBytes = std::uint64_t{64} << 20;
constexpr std::size_t kBlockAlignment = 64;
// The share of a limited address space: this heap, the heaps of a few peers, and all other mappings must have room.
constexpr std::uint64_t kShareOfLimited = 8;

// The rest of the address space under `ulimit -v`; nullopt without a limit.
std::optional<std::uint64_t> addressSpaceLeft() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  const Fd file(::open("/proc/self/statm", O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  if (!file.isOpen() || ::read(file.get(), text, sizeof(text) - 1) <= 0) {
    return limit.rlim_cur;
  }
  const std::uint64_t used = ::strtoull(text, nullptr, 10) * pageBytes();
  return limit.rlim_cur - std::min<std::uint64_t>(used, limit.rlim_cur);
}

// Limit of freed bytes that keep their pages: touching new shared pages costs several times as much as copying into old
// pages.
std::uint64_t cacheLimit() {
  const std::uint64_t machine = machineBytes();
  return std::min(machine / 8, std::max(std::uint64_t{1} << 30, machine / 32));
}

Result<void*> allocateOrdinary(std::size_t bytes) {
  void* block = nullptr;
  const int error = ::posix_memalign(&block, kBlockAlignment, std::max<std::size_t>(bytes, 1));
  return error == 0 ? Result<void*>(block) : systemError(fmt::format("cannot allocate {} bytes", bytes), error);
}

// Ordinary memory that replaces the heap in a forked child that still uses the parent's object.
struct OrdinaryBlocks {
  Mutex mutex;
  std::unordered_set<void*> blocks SW_GUARDED_BY(mutex);

  Result<void*> allocate(std::size_t bytes) {
    const Result<void*> block = allocateOrdinary(bytes);
    if (block.isOk()) {
      const MutexLock lock(mutex);
      blocks.insert(*block);
    }
    return block;
  }
  bool free(void* block) {
    {
      const MutexLock lock(mutex);
      if (blocks.erase(block) == 0) {
        return false;
      }
    }
    ::free(block);
    return true;
  }
};
OrdinaryBlocks& ordinaryBlocks() {
  static auto* made = new OrdinaryBlocks;  // never destroyed: blocks may outlive static destructors
  return *made;
}

class MemfdHeap final : public SharedHeap {
 public:
  // `inherited`: the parent's heap, which this process must not touch; may be null.
  static Result<std::unique_ptr<MemfdHeap>> create(std::uint64_t bytes, const MemfdHeap* inherited) {
    auto fd = makeMemfd("shardwire-heap", bytes);
    SW_RETURN_IF_ERROR(fd.status());
    auto mapping = Mapping::shared(fd->get(), 0, bytes, Access::kReadWrite, "the shared heap", kHugePage);
    SW_RETURN_IF_ERROR(mapping.status());
    ::madvise(mapping->bytes(), bytes,
              MADV_HUGEPAGE);  // advice only: refused where the kernel has no huge shared pages
    return std::unique_ptr<MemfdHeap>(new MemfdHeap(std::move(*fd), std::move(*mapping), inherited));
  }

  // Where nothing can be reserved: all blocks are ordinary memory, which peers do not map.
  static std::unique_ptr<MemfdHeap> createWithoutReservation(const MemfdHeap* inherited) {
    auto heap = std::unique_ptr<MemfdHeap>(new MemfdHeap(Fd(), Mapping(), inherited));
    heap->disown();
    return heap;
  }

  Result<void*> allocate(std::size_t bytes) override;
  void free(void* bytes) override;
  std::optional<std::uint64_t> offsetOf(const void* bytes, std::size_t size) const override;
  int fd() const override { return fd_.get(); }
  std::uint64_t reservedBytes() const override { return mapping_.size(); }
  std::uint64_t usedBytes() const override { return usedBytes_.load(std::memory_order_relaxed); }
  std::uint64_t numPurges() const override { return numPurges_.load(std::memory_order_acquire); }

  // Called in the child of a fork: from now on the heap is the parent's. Uses only system calls that are safe there.
  void disown() {
    isInherited_.store(true, std::memory_order_relaxed);
    // As with ordinary memory after a fork, writes of the child must not show in the parent. Pages that the child does
    // not write stay the parent's. A kernel that counts all private memory (vm.overcommit_memory=2) may refuse, and has
    // then already unmapped the range.
    constexpr int kFlags = MAP_FIXED | MAP_NORESERVE;
    if (::mmap(mapping_.bytes(), mapping_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | kFlags, fd_.get(), 0) ==
        MAP_FAILED) {
      ::mmap(mapping_.bytes(), mapping_.size(), PROT_READ | PROT_WRITE, MAP_SHARED | kFlags, fd_.get(), 0);
    }
  }

 private:
  MemfdHeap(Fd fd, Mapping mapping, const MemfdHeap* inherited)
      : fd_(std::move(fd)),
        mapping_(std::move(mapping)),
        inherited_(inherited),
        cacheLimit_(cacheLimit()),
        extents_(mapping_.size()) {}

  bool contains(const void* bytes) const {
    const auto* at = static_cast<const std::byte*>(bytes);
    return at >= mapping_.bytes() && at < mapping_.bytes() + mapping_.size();
  }
  std::optional<std::uint64_t> takeSmall(std::uint64_t bytes) SW_REQUIRES(mutex_);
  // `isNew`: a block of huge pages without memory yet.
  std::optional<std::uint64_t> takeLarge(std::uint64_t bytes, bool* isNew) SW_REQUIRES(mutex_);
  void giveBack(std::uint64_t offset) SW_REQUIRES(mutex_);
  // Returns pages of free extents to the system until at most `limit` free bytes have pages.
  void purge(std::uint64_t limit) SW_EXCLUDES(mutex_);
  // Waits for the extents that other threads are returning to the system: until then no thread can take these extents.
  void awaitPurges() SW_EXCLUDES(mutex_);

  const Fd fd_;
  const Mapping mapping_;
  const MemfdHeap* const inherited_;
  const std::uint64_t cacheLimit_;
  HugePages hugePages_;
  std::atomic<bool> isInherited_{false};  // set once, in a child that has only one thread then
  std::atomic<std::uint64_t> usedBytes_{0};
  std::atomic<std::uint64_t> numPurges_{0};
  Mutex mutex_;
  ConditionVariable purged_;
  int numPurging_ SW_GUARDED_BY(mutex_) = 0;  // extents outside of all tables while the kernel takes their pages
  ExtentMap extents_ SW_GUARDED_BY(mutex_);
  SmallBlocks small_ SW_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, std::uint64_t> large_ SW_GUARDED_BY(mutex_);  // offset -> bytes
};

std::atomic<bool (*)()> releaseWhenFull{nullptr};  // relaxed: a function, and nothing that it refers to

std::optional<std::uint64_t> MemfdHeap::takeSmall(std::uint64_t bytes) {
  const int sizeClass = sizeClassOf(bytes);
  auto offset = small_.take(sizeClass);
  if (!offset) {
    const auto slab = extents_.take(kSlabBytes, kSlabBytes);
    if (!slab) {
      return std::nullopt;
    }
    small_.addSlab(slab->offset, sizeClass);
    offset = small_.take(sizeClass);
  }
  usedBytes_.fetch_add(sizeClassBytes(sizeClass), std::memory_order_relaxed);
  return offset;
}

std::optional<std::uint64_t> MemfdHeap::takeLarge(std::uint64_t bytes, bool* isNew) {
  const std::uint64_t unit = bytes >= kHugePage ? kHugePage : pageBytes();
  bool wasDirty = false;
  const auto extent = extents_.take(roundUp(bytes, unit), unit, &wasDirty);
  *isNew = unit == kHugePage && !wasDirty;
  if (!extent) {
    return std::nullopt;
  }
  large_.emplace(extent->offset, extent->bytes);
  usedBytes_.fetch_add(extent->bytes, std::memory_order_relaxed);
  return extent->offset;
}

Result<void*> MemfdHeap::allocate(std::size_t bytes) {
  if (isInherited_.load(std::memory_order_relaxed)) {
    return ordinaryBlocks().allocate(bytes);
  }
  // When dirty neighbours of clean extents are purged, they become one extent, which may be large enough.
  bool mayJoinMore = bytes <= mapping_.size();  // else rounding might overflow
  while (mayJoinMore) {
    bool isNew = false;
    std::optional<std::uint64_t> offset;
    {
      const MutexLock lock(mutex_);
      offset = bytes <= kMaxSmallBytes ? takeSmall(bytes) : takeLarge(bytes, &isNew);
      mayJoinMore = extents_.dirtyBytes() > 0 || numPurging_ > 0;
    }
    if (offset) {
      std::byte* block = mapping_.bytes() + *offset;
      if (isNew && bytes <= kMostBackedAtOnce) {
        hugePages_.back(block, roundUp(bytes, kHugePage));
      }
      return static_cast<void*>(block);
    }
    purge(0);
    awaitPurges();
  }
  if (const auto release = releaseWhenFull.load(std::memory_order_relaxed); release != nullptr && release()) {
    return allocate(bytes);
  }
  return Status{
      StatusCode::kSystem,
      fmt::format("the shared heap of {} bytes has {} in use and no room for {} more: raise SHARDWIRE_HEAP_BYTES",
                  mapping_.size(), usedBytes(), bytes)};
}

void MemfdHeap::giveBack(std::uint64_t offset) {
  if (const auto freed = small_.give(offset)) {
    usedBytes_.fetch_sub(freed->bytes, std::memory_order_relaxed);
    if (freed->emptySlab) {
      extents_.give({*freed->emptySlab, kSlabBytes}, true);
    }
    return;
  }
  const auto found = large_.find(offset);
  const bool isAllocatedBlock = found != large_.end();
  SW_CHECK(isAllocatedBlock);  // else freed twice, or an address that allocate() did not return
  usedBytes_.fetch_sub(found->second, std::memory_order_relaxed);
  extents_.give({offset, found->second}, true);
  large_.erase(found);
}

void MemfdHeap::free(void* bytes) {
  if (!contains(bytes)) {
    for (const MemfdHeap* heap = inherited_; heap != nullptr; heap = heap->inherited_) {
      if (heap->contains(bytes)) {
        return;
      }
    }
    const bool isOurs = ordinaryBlocks().free(bytes);
    SW_CHECK(isOurs);  // else not from this heap
    return;
  }
  if (isInherited_.load(std::memory_order_relaxed)) {
    return;
  }
  bool isFull = false;
  {
    const MutexLock lock(mutex_);
    giveBack(static_cast<std::uint64_t>(static_cast<std::byte*>(bytes) - mapping_.bytes()));
    isFull = extents_.dirtyBytes() > cacheLimit_;
  }
  if (isFull) {
    purge(cacheLimit_);
  }
}

void MemfdHeap::purge(std::uint64_t limit) {
  while (true) {
    std::optional<Extent> extent;
    {
      const MutexLock lock(mutex_);
      if (extents_.dirtyBytes() > limit) {
        extent = extents_.takeOldestDirty(roundUp(extents_.dirtyBytes() - limit, kHugePage));
      }
      numPurging_ += extent.has_value() ? 1 : 0;
    }
    if (!extent) {
      return;
    }
    // No other thread has the extent now, so the lock need not be held while the kernel works.
    if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(extent->offset),
                    static_cast<off_t>(extent->bytes)) != 0) {
      logWarn("the shared heap could not return {} bytes to the system: {}", extent->bytes, errnoText(errno));
    }
    const MutexLock lock(mutex_);
    // Counted after the hole and before any thread can get this extent: a process that read the old count may have the
    // old pages, and is stale from now on. Release: pairs with numPurges().
    numPurges_.fetch_add(1, std::memory_order_release);
    extents_.give(*extent, false);
    --numPurging_;
    purged_.notifyAll();
  }
}

void MemfdHeap::awaitPurges() {
  const MutexLock lock(mutex_);
  while (numPurging_ > 0) {
    purged_.wait(mutex_);
  }
}

std::optional<std::uint64_t> MemfdHeap::offsetOf(const void* bytes, std::size_t size) const {
  if (!contains(bytes) || isInherited_.load(std::memory_order_relaxed)) {
    return std::nullopt;
  }
  const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(bytes) - mapping_.bytes());
  if (size > mapping_.size() - offset) {
    return std::nullopt;
  }
  return offset;
}

// The process's heap. Never destroyed: tensors may be freed by static destructors.
Mutex instanceMutex;
std::atomic<MemfdHeap*> current{nullptr};
// Changed only in a child of fork() that has one thread; release and acquire cost nothing here.
std::atomic<MemfdHeap*> inherited{nullptr};

void beforeFork() SW_NO_THREAD_SAFETY_ANALYSIS {
  instanceMutex.lock();
  ordinaryBlocks().mutex.lock();
}
void afterForkInParent() SW_NO_THREAD_SAFETY_ANALYSIS {
  ordinaryBlocks().mutex.unlock();
  instanceMutex.unlock();
}
void afterForkInChild() SW_NO_THREAD_SAFETY_ANALYSIS {
  if (MemfdHeap* heap = current.load(std::memory_order_relaxed)) {
    heap->disown();
    inherited.store(heap, std::memory_order_release);
    current.store(nullptr, std::memory_order_relaxed);
  }
  ordinaryBlocks().mutex.unlock();
  instanceMutex.unlock();
}

Result<std::unique_ptr<MemfdHeap>> makeHeap(const MemfdHeap* parentHeap) {
  const auto options = Options::fromEnvironment();
  SW_RETURN_IF_ERROR(options.status());
  const std::uint64_t wanted = roundUp(options->heapBytes != 0 ? options->heapBytes : 2 * machineBytes(), kHugePage);
  std::uint64_t bytes = wanted;
  if (const auto left = addressSpaceLeft(); left && options->heapBytes == 0) {
    bytes = std::min(bytes, std::max(kLeastAutoBytes, *left / kShareOfLimited & ~(kHugePage - 1)));
  }
  Status failure;
  for (bool isLast = false; !isLast; bytes = roundUp(bytes / 2, kHugePage)) {
    auto heap = MemfdHeap::create(bytes, parentHeap);
    if (heap.isOk()) {
      if (bytes < wanted) {
        logWarn("the shared heap reserves only {} MiB of address space instead of {} MiB ({}): {}", bytes >> 20,
                wanted >> 20, options->heapBytes != 0 ? "SHARDWIRE_HEAP_BYTES" : "twice the machine's memory",
                failure.isOk() ? "ulimit -v leaves no more for it; SHARDWIRE_HEAP_BYTES sets another size"
                               : failure.message());
      }
      return heap;
    }
    failure = heap.status();  // address space or file size is limited: take what is allowed
    isLast = bytes / 2 < std::min(kLeastAutoBytes, wanted);
  }
  logWarn("there is no shared heap, so tensors lie in ordinary memory, which other ranks cannot map: {}",
          failure.message());
  return MemfdHeap::createWithoutReservation(parentHeap);
}

}  // namespace

Result<SharedHeap*> SharedHeap::instance() {
  if (MemfdHeap* heap = current.load(std::memory_order_acquire)) {
    return heap;
  }
  const MutexLock lock(instanceMutex);
  if (MemfdHeap* heap = current.load(std::memory_order_relaxed)) {
    return heap;
  }
  static const int atfork = ::pthread_atfork(beforeFork, afterForkInParent, afterForkInChild);
  if (atfork != 0) {
    return systemError("pthread_atfork", atfork);
  }
  auto heap = makeHeap(inherited.load(std::memory_order_acquire));
  SW_RETURN_IF_ERROR(heap.status());
  MemfdHeap* made = heap->release();
  current.store(made, std::memory_order_release);  // pairs with the load above
  return made;
}

SharedHeap* SharedHeap::instanceIfMade() {
  return current.load(std::memory_order_acquire);
}

Result<SharedHeap*> SharedHeap::instanceOrInherited() {
  if (MemfdHeap* heap = current.load(std::memory_order_acquire)) {
    return heap;
  }
  if (MemfdHeap* heap = inherited.load(std::memory_order_acquire)) {
    return heap;
  }
  return instance();
}

void SharedHeap::whenFull(bool (*release)()) {
  releaseWhenFull.store(release, std::memory_order_relaxed);
}

void SharedHeap::freeBlock(void* bytes) {
  MemfdHeap* heap = current.load(std::memory_order_acquire);
  if (heap == nullptr) {
    heap = inherited.load(std::memory_order_acquire);
  }
  SW_CHECK(heap != nullptr);  // else no heap allocated these bytes
  heap->free(bytes);
}

Result<std::shared_ptr<void>> allocateShared(std::size_t bytes) {
  const Result<SharedHeap*> heap = SharedHeap::instance();
  SW_RETURN_IF_ERROR(heap.status());
  const Result<void*> memory = (*heap)->allocate(bytes);
  SW_RETURN_IF_ERROR(memory.status());
  return std::shared_ptr<void>(*memory, &SharedHeap::freeBlock);
}

Result<std::shared_ptr<void>> allocateScratch(std::size_t bytes) {
  Result<std::shared_ptr<void>> shared = allocateShared(bytes);
  if (shared.isOk()) {
    return shared;
  }
  const Result<void*> ordinary = allocateOrdinary(bytes);
  if (!ordinary.isOk()) {
    return Status{StatusCode::kSystem, fmt::format("{}; nor is there ordinary memory: {}", shared.status().message(),
                                                   ordinary.status().message())};
  }
  static std::atomic_flag isReported;
  if (!isReported.test_and_set(std::memory_order_relaxed)) {
    logWarn("copies of tensors go to ordinary memory, out of which other ranks read more slowly: {}",
            shared.status().message());
  }
  return std::shared_ptr<void>(*ordinary, &::free);
}

}  // namespace shardwire::internal
