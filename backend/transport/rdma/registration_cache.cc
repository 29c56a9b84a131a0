// pin() first looks for a registration that covers the bytes and is known to be current (find(), isCurrent()).
// Otherwise pin() makes a new one: rounded to kHeapUnit in the shared heap, or exact, with a weak reference to the
// storage if the storage can be watched. makeWay() retires overlapping entries, registerOn() registers the memory with
// every device, and sweep() drops stale entries and keeps the cache within its limits. unpin() releases; memory without
// a known identity is deregistered with its last unpin().
#include "backend/transport/rdma/registration_cache.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "backend/base/page_size.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr std::uintptr_t kPage = 4096;
constexpr std::uintptr_t kHeapUnit = std::uintptr_t{2} << 20;  // heap memory is registered in multiples of this
// A search for stale entries looks at each entry. The search costs little beside the registering of so many bytes, or
// of half of the entries.
constexpr std::uint64_t kSweepEveryBytes = std::uint64_t{64} << 20;

std::uintptr_t roundDown(std::uintptr_t value, std::uintptr_t unit) {
  return value / unit * unit;
}

rlim_t memlockLimit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Half of the memlock limit, at most a quarter of the machine's memory.
std::uint64_t defaultKeptBytes() {
  return std::min<std::uint64_t>(machineBytes() / 4, memlockLimit() / 2);
}

}  // namespace

RegistrationCache::RegistrationCache(const VerbsApi& api, const std::vector<std::unique_ptr<RdmaDevice>>& devices,
                                     const StorageWatch* watch, RegistrationLimits limits)
    : api_(api), devices_(devices), watch_(watch), limits_(limits) {
  SW_CHECK(devices_.size() <= std::tuple_size_v<decltype(Registration::regions)>);
  if (limits_.bytes == 0) {
    limits_.bytes = defaultKeptBytes();
  }
}

RegistrationCache::~RegistrationCache() {
  for (auto& [base, entry] : entries_) {
    deregister(entry.get());
  }
  for (auto& entry : retired_) {
    deregister(entry.get());
  }
}

bool RegistrationCache::isCurrent(const Registration& entry, const void* storage) const {
  switch (entry.kind) {
    case Registration::Kind::kHeap: {
      const SharedHeap* heap = SharedHeap::instanceIfMade();
      return heap != nullptr && heap->numPurges() == entry.heapPurges;
    }
    case Registration::Kind::kStorage:
      if (storage != nullptr) {
        return storage == entry.storage && !watch_->isExpired(entry.weak);
      }
      return entry.numOpenPins > 0;
    case Registration::Kind::kOnce:
      return false;
  }
  return false;
}

Registration* RegistrationCache::find(const void* bytes, std::size_t size, bool isWritten, const void* storage) {
  const auto fits = [&](const Registration& entry) {
    return entry.covers(bytes, size) && (entry.isWritable || !isWritten);
  };
  auto next = entries_.upper_bound(reinterpret_cast<std::uintptr_t>(bytes));
  if (next != entries_.begin()) {
    Registration* entry = std::prev(next)->second.get();
    if (fits(*entry) && isCurrent(*entry, storage)) {
      return entry;
    }
  }
  // A kOnce registration is valid while a caller of pin() keeps the memory alive. There are few.
  const auto pinned = std::ranges::find_if(retired_, [&](const auto& entry) {
    return entry->kind == Registration::Kind::kOnce && entry->numOpenPins > 0 && fits(*entry);
  });
  return pinned != retired_.end() ? pinned->get() : nullptr;
}

bool RegistrationCache::isReady(const void* bytes, std::size_t size, bool isWritten) const {
  return const_cast<RegistrationCache*>(this)->find(bytes, size, isWritten, nullptr) != nullptr;
}

Result<Registration*> RegistrationCache::pin(const void* bytes, std::size_t size, bool isWritten, const void* storage) {
  if (Registration* entry = find(bytes, size, isWritten, storage)) {
    ++entry->numPins;
    ++entry->numOpenPins;
    entry->lastUse = ++useClock_;
    return entry;
  }
  auto fresh = std::make_unique<Registration>();
  const auto at = reinterpret_cast<std::uintptr_t>(bytes);
  SharedHeap* heap = SharedHeap::instanceIfMade();
  const auto offset = heap != nullptr ? heap->offsetOf(bytes, size) : std::nullopt;
  fresh->isWritable = isWritten;
  if (offset) {
    const std::uintptr_t heapBase = at - *offset;
    const std::uint64_t from = roundDown(*offset, kHeapUnit);
    const std::uint64_t to = std::min<std::uint64_t>(roundUp(*offset + size, kHeapUnit), heap->reservedBytes());
    *fresh = {.base = heapBase + from, .size = to - from, .isWritable = true, .kind = Registration::Kind::kHeap};
    fresh->heapPurges =
        heap->numPurges();  // read before the pages are pinned: a purge that ends later makes the entry stale
  } else {
    fresh->base = at;
    fresh->size = size;
    fresh->weak = storage != nullptr && watch_ != nullptr ? watch_->retainWeak(storage) : nullptr;
    if (fresh->weak != nullptr) {
      fresh->kind = Registration::Kind::kStorage;
      fresh->storage = storage;
    }
  }
  // Registered pages stay in memory although their tensor was freed.
  if (fresh->kind != Registration::Kind::kOnce &&
      (bytesSinceSweep_ >= kSweepEveryBytes || 2 * numSinceSweep_ >= entries_.size())) {
    sweep(limits_.bytes, limits_.entries);
  }
  makeWay(fresh.get());
  const Status status = registerOn(fresh.get());
  if (!status.isOk()) {
    deregister(fresh.get());
    return status;
  }
  Registration* made = fresh.get();
  made->numPins = 1;
  made->numOpenPins = 1;
  made->lastUse = ++useClock_;
  keptBytes_ += made->size;
  ++numRegistered_;
  if (made->kind == Registration::Kind::kOnce) {
    retired_.push_back(std::move(fresh));
  } else {
    bytesSinceSweep_ += made->size;
    ++numSinceSweep_;
    entries_[made->base] = std::move(fresh);
  }
  if (keptBytes_ > limits_.bytes || entries_.size() > limits_.entries) {
    sweep(limits_.bytes, limits_.entries);
  }
  return made;
}

void RegistrationCache::makeWay(Registration* fresh) {
  if (fresh->kind == Registration::Kind::kOnce) {
    return;
  }
  auto entry = entries_.lower_bound(fresh->base);
  if (entry != entries_.begin() && std::prev(entry)->second->base + std::prev(entry)->second->size > fresh->base) {
    --entry;
  }
  while (entry != entries_.end() && entry->second->base < fresh->base + fresh->size) {
    const Registration& old = *entry->second;
    // Two views of one storage share one registration after this.
    if (old.kind == fresh->kind && isCurrent(old, fresh->storage)) {
      const std::uintptr_t end = std::max(old.base + old.size, fresh->base + fresh->size);
      fresh->base = std::min(old.base, fresh->base);
      fresh->size = end - fresh->base;
      fresh->isWritable = fresh->isWritable || old.isWritable;
    }
    entry = retire(entry);
  }
}

RegistrationCache::Entries::iterator RegistrationCache::retire(Entries::iterator entry) {
  if (entry->second->numPins > 0) {
    retired_.push_back(std::move(entry->second));
  } else {
    keptBytes_ -= entry->second->size;
    deregister(entry->second.get());
  }
  return entries_.erase(entry);
}

Status RegistrationCache::registerOn(Registration* entry) {
  const std::uintptr_t base = roundDown(entry->base, kPage);
  const std::uintptr_t end = roundUp(entry->base + entry->size, kPage);
  // Peers get no access to read-only memory: only our own device reads the memory, to send.
  const int access = entry->isWritable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
  bool hasSwept = false;
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    while (entry->regions[i] == nullptr) {
      errno = 0;
      entry->regions[i] = api_.regMr(devices_[i]->pd(), reinterpret_cast<void*>(base), end - base, access);
      if (entry->regions[i] != nullptr) {
        break;
      }
      const int error = errno;
      if (error != ENOMEM || hasSwept) {
        return describeRefusal(*entry, error);
      }
      sweep(0, 0);
      hasSwept = true;
    }
  }
  return Status::ok();
}

Status RegistrationCache::describeRefusal(const Registration& entry, int error) const {
  std::string advice;
  if (error == ENOMEM) {
    const rlim_t limit = memlockLimit();
    advice = limit == RLIM_INFINITY
                 ? "; the memlock limit is unlimited, so the machine or the device is out of memory"
                 : fmt::format(
                       "; {} bytes are registered and the memlock limit is {} bytes: raise it (ulimit -l unlimited; "
                       "'memlock' in "
                       "/etc/security/limits.conf; LimitMEMLOCK= of the service; --ulimit memlock=-1 of the container)",
                       keptBytes_, limit);
  }
  return systemError(fmt::format("cannot register {} bytes with the RDMA device{}: ibv_reg_mr", entry.size, advice),
                     error);
}

void RegistrationCache::deregister(Registration* entry) {
  for (ibv_mr*& region : entry->regions) {
    if (region != nullptr) {
      api_.deregMr(region);
      region = nullptr;
    }
  }
  if (entry->weak != nullptr) {
    watch_->releaseWeak(entry->weak);
    entry->weak = nullptr;
  }
}

void RegistrationCache::close(Registration* registration) {
  SW_CHECK(registration->numOpenPins > 0);
  --registration->numOpenPins;
}

void RegistrationCache::unpinClosed(Registration* registration) {
  SW_CHECK(registration->numPins > registration->numOpenPins);
  if (--registration->numPins > 0) {
    return;
  }
  const auto retired = std::ranges::find_if(retired_, [&](const auto& entry) { return entry.get() == registration; });
  if (retired != retired_.end()) {
    keptBytes_ -= registration->size;
    deregister(registration);
    retired_.erase(retired);
  } else if (keptBytes_ > limits_.bytes) {
    sweep(limits_.bytes, limits_.entries);
  }
}

void RegistrationCache::sweep(std::uint64_t limitBytes, std::size_t limitEntries) {
  bytesSinceSweep_ = 0;
  numSinceSweep_ = 0;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const Registration& one = *entry->second;
    const bool isStale = one.numPins == 0 && !isCurrent(one, one.storage);
    entry = isStale ? retire(entry) : std::next(entry);
  }
  while (keptBytes_ > limitBytes || entries_.size() > limitEntries) {
    auto oldest = entries_.end();
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      const bool isOlder = oldest == entries_.end() || entry->second->lastUse < oldest->second->lastUse;
      oldest = entry->second->numPins == 0 && isOlder ? entry : oldest;
    }
    if (oldest == entries_.end()) {
      return;
    }
    retire(oldest);
  }
}

}  // namespace shardwire::internal
