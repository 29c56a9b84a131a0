#include "backend/transport/shm/peer_heap.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <map>

#include "backend/base/memfd.h"
#include "backend/base/mutex.h"
#include "backend/base/per_process.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Process-wide by nature, like the address space. An entry expires with the last connection that uses the heap.
struct Registry {
  Mutex mutex;
  std::map<RandomId, std::weak_ptr<const Mapping>> heaps SW_GUARDED_BY(mutex);
};

Result<Mapping> mapChecked(int fd, std::uint64_t bytes, pid_t owner) {
  if (Status checked = checkMemfd(fd, bytes); !checked.isOk()) {
    return Status{checked.code(), fmt::format("the shared heap of pid {}: {}", owner, checked.message())};
  }
  auto mapping = Mapping::shared(fd, 0, bytes, Access::kRead, "a peer's shared heap", kHugePage);
  if (mapping.isOk()) {
    ::madvise(mapping->bytes(), bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge shared pages refuses
    ::madvise(mapping->bytes(), bytes, MADV_DONTDUMP);  // keeps the peers' memory out of core files
  }
  return mapping;
}

}  // namespace

Result<std::shared_ptr<const Mapping>> mapPeerHeap(const RandomId& process, int fd, std::uint64_t bytes, pid_t owner) {
  Registry& heaps = PerProcess<Registry>::get();
  const MutexLock lock(heaps.mutex);
  std::erase_if(heaps.heaps, [](const auto& entry) { return entry.second.expired(); });
  if (auto known = heaps.heaps[process].lock(); known != nullptr && known->size() == bytes) {
    return known;
  }
  auto mapping = mapChecked(fd, bytes, owner);
  SW_RETURN_IF_ERROR(mapping.status());
  auto shared = std::make_shared<const Mapping>(std::move(*mapping));
  heaps.heaps[process] = shared;
  return shared;
}

}  // namespace shardwire::internal
