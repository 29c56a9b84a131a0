// Memory that the rank's RDMA devices may use, registered at the first use and kept for later uses. Registering pins
// pages and costs about as much as sending the pages, so a steady state registers nothing.
//
// A registration must never be used for memory that was freed and mapped again at the same address: the device would
// continue to use the old pages. So a kept registration is used again only
//   - in the shared heap, as long as the heap has returned no memory to the system since (SharedHeap::numPurges()), or
//   - inside a tensor's storage that is known to be alive, with the same memory (StorageWatch), or
//   - while the same memory is pinned by an earlier pin(), and the caller keeps the memory alive (until close()).
// Other memory is registered only while it is pinned.
//
// Threads: one at a time (see Connection).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "backend/memory/shared_heap.h"
#include "backend/transport/rdma/rdma_device.h"
#include "backend/transport/rdma/verbs_api.h"
#include "shardwire/status.h"
#include "shardwire/storage_watch.h"

namespace shardwire::internal {

// One piece of memory on all devices of the rank. Owned by the cache.
struct Registration {
  std::uintptr_t base = 0;
  std::size_t size = 0;
  bool isWritable = false;  // peers that have the remote key may write
  std::uint32_t numPins = 0;
  std::uint32_t numOpenPins = 0;  // of these: pins whose callers keep the memory alive
  std::uint64_t lastUse = 0;
  std::array<ibv_mr*, kMaxRails> regions{};  // by device
  enum class Kind : unsigned char { kOnce, kHeap, kStorage } kind = Kind::kOnce;
  std::uint64_t heapPurges = 0;   // kHeap: as counted before registering
  const void* storage = nullptr;  // kStorage
  void* weak = nullptr;           // kStorage: see StorageWatch

  bool covers(const void* bytes, std::size_t bytesSize) const {
    const auto at = reinterpret_cast<std::uintptr_t>(bytes);
    return at >= base && bytesSize <= size && at - base <= size - bytesSize;
  }
};

struct RegistrationLimits {
  // The cache keeps at most this many bytes and entries, unless more are pinned. bytes = 0: chosen from the machine's
  // memory and the memlock limit.
  std::uint64_t bytes = 0;
  std::size_t entries = 8192;
};

class RegistrationCache {
 public:
  // `devices` and `watch` (may be null) outlive the cache.
  RegistrationCache(const VerbsApi& api, const std::vector<std::unique_ptr<RdmaDevice>>& devices,
                    const StorageWatch* watch, RegistrationLimits limits = {});
  ~RegistrationCache();
  RegistrationCache(const RegistrationCache&) = delete;
  RegistrationCache& operator=(const RegistrationCache&) = delete;

  // A registration that covers the bytes, until unpin(). `isWritten`: peers will write there. `storage`: see
  // TensorView; may be null. kSystem when the system refuses. If the memlock limit is the cause, the text has the limit
  // and how to raise it.
  Result<Registration*> pin(const void* bytes, std::size_t size, bool isWritten, const void* storage);
  void unpin(Registration* registration) {
    close(registration);
    unpinClosed(registration);
  }
  // unpin() in two steps, where devices still use the memory when its owner may already free it: close() keeps the
  // memory registered, but no later pin() gets this registration because of this pin.
  void close(Registration* registration);
  void unpinClosed(Registration* registration);
  // Whether pin() without a storage would find these bytes registered and known to be the same memory.
  bool isReady(const void* bytes, std::size_t size, bool isWritten) const;

  // Number of registrations ever made; constant in a steady state.
  std::uint64_t numRegistered() const { return numRegistered_; }
  std::uint64_t keptBytes() const { return keptBytes_; }
  std::size_t numEntries() const { return entries_.size() + retired_.size(); }

 private:
  using Entries = std::map<std::uintptr_t, std::unique_ptr<Registration>>;

  Registration* find(const void* bytes, std::size_t size, bool isWritten, const void* storage);
  bool isCurrent(const Registration& entry, const void* storage) const;
  // Retires all entries that overlap the new registration, and grows the new one over current entries of the same kind.
  void makeWay(Registration* fresh);
  Status registerOn(Registration* entry);
  void deregister(Registration* entry);
  // Removes the entry from entries_. A pinned entry is deregistered with its last unpin().
  Entries::iterator retire(Entries::iterator entry);
  // Drops unpinned entries: all stale entries, then the least recently used, until at most `limitBytes` and
  // `limitEntries` are kept.
  void sweep(std::uint64_t limitBytes, std::size_t limitEntries);
  Status describeRefusal(const Registration& entry, int error) const;

  const VerbsApi& api_;
  const std::vector<std::unique_ptr<RdmaDevice>>& devices_;
  const StorageWatch* watch_;
  RegistrationLimits limits_;
  Entries entries_;                                     // may be used again; do not overlap
  std::vector<std::unique_ptr<Registration>> retired_;  // pinned; later calls of pin() may still share a kOnce entry
  std::uint64_t keptBytes_ = 0;                         // of entries_ and retired_
  std::uint64_t numRegistered_ = 0;
  std::uint64_t useClock_ = 0;
  std::uint64_t bytesSinceSweep_ = 0;  // registered and kept
  std::size_t numSinceSweep_ = 0;
};

}  // namespace shardwire::internal
