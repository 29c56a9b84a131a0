#include "backend/c10d/torch_storage_watch.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "backend/base/mutex.h"

namespace shardwire::internal {
namespace {

c10::StorageImpl* storageOf(const void* storage) {
  return static_cast<c10::StorageImpl*>(const_cast<void*>(storage));
}

// Number of blocks freed at addresses with one hash. Two addresses may share a number: their memory is then registered
// once more than necessary. No lock, since blocks are also freed in a child of fork().
std::atomic<std::uint64_t>& numFreedAt(const void* block) {
  constexpr int kBits = 12;
  static std::array<std::atomic<std::uint64_t>, std::size_t{1} << kBits> numbers{};
  const auto address = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(block));
  return numbers[static_cast<std::size_t>((address >> 6) * 0x9e3779b97f4a7c15U >> (64 - kBits))];
}

c10::DeleterFnPtr torchsDeleter() {
  static const c10::DeleterFnPtr deleter = c10::GetDefaultCPUAllocator()->raw_deleter();
  return deleter;
}

// Counted before the pages may go back to the system.
void freeWatched(void* block) {
  numFreedAt(block).fetch_add(1);
  torchsDeleter()(block);
}

// FSDP, for one, resizes a storage to nothing and back: another block, often at the same address, with other pages. No
// field of the storage shows this. So the block's deleter is replaced by one that counts, and nothing else is changed.
// False: another allocator made the block.
bool watchBlock(c10::StorageImpl& storage) {
  static Mutex mutex;  // two groups may begin at once
  const MutexLock lock(mutex);
  auto& block = const_cast<c10::DataPtr&>(std::as_const(storage).data_ptr());
  return block.get_deleter() == &freeWatched ||
         (block.get() == block.get_context() && block.compare_exchange_deleter(torchsDeleter(), &freeWatched));
}

struct Watched {
  c10::StorageImpl* storage;  // a weak reference
  const void* block;
  std::uint64_t numFreed;
};

void* retainWeak(const void* storage) {
  c10::StorageImpl* const impl = storageOf(storage);
  if (impl->resizable() && !watchBlock(*impl)) {
    return nullptr;
  }
  const void* const block = std::as_const(*impl).data_ptr().get();
  // The object, and so the address, stays as long as weak references exist.
  static_cast<void>(c10::raw::intrusive_ptr::make_weak(impl));
  return new Watched{impl, block, numFreedAt(block)};
}

// A storage without owners gives its memory back at once.
bool isExpired(void* weak) {
  const auto* const watched = static_cast<Watched*>(weak);
  return c10::raw::weak_intrusive_ptr::use_count(watched->storage) == 0 ||
         numFreedAt(watched->block) != watched->numFreed;
}

void releaseWeak(void* weak) {
  auto* const watched = static_cast<Watched*>(weak);
  c10::raw::weak_intrusive_ptr::decref(watched->storage);
  delete watched;
}

}  // namespace

const StorageWatch& torchStorageWatch() {
  static constexpr StorageWatch kWatch = {
      .retainWeak = &retainWeak, .isExpired = &isExpired, .releaseWeak = &releaseWeak};
  return kWatch;
}

}  // namespace shardwire::internal
