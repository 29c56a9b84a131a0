#include <errno.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>

#include "backend/base/futex.h"
#include "backend/base/interruptible_wait.h"
#include "backend/base/system_error.h"
#include "shardwire/stores.h"

namespace shardwire {
namespace {

constexpr Duration kLongestSleep = std::chrono::milliseconds(100);

struct EntryHead {
  std::uint32_t keyBytes;
  std::uint32_t valueBytes;
};

}  // namespace

// A log of entries follows in memory.
struct MemoryStore::Shared {
  pthread_mutex_t mutex;
  std::atomic<std::uint32_t> numSets;  // futex
  std::uint64_t used;                  // bytes of the log; under the mutex

  Shared() : numSets(0), used(0) {
    pthread_mutexattr_t attributes;
    SW_CHECK(::pthread_mutexattr_init(&attributes) == 0);
    SW_CHECK(::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
    SW_CHECK(::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
    SW_CHECK(::pthread_mutex_init(&mutex, &attributes) == 0);
    ::pthread_mutexattr_destroy(&attributes);
  }
  char* log() { return reinterpret_cast<char*>(this + 1); }

  void lock() {
    if (::pthread_mutex_lock(&mutex) == EOWNERDEAD) {
      ::pthread_mutex_consistent(
          &mutex);  // an entry counts only when `used` covers the entry, so no entry is half written
    }
  }
  void unlock() { ::pthread_mutex_unlock(&mutex); }
};

MemoryStore::MemoryStore(std::size_t bytes) : bytes_(bytes) {
  // The sum must not wrap: mmap refuses the largest size.
  void* memory = ::mmap(nullptr, sizeof(Shared) + std::min(bytes, SIZE_MAX - sizeof(Shared)), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    noMemory_ = internal::systemError(fmt::format("mmap of {} bytes for a memory store", bytes), errno);
    return;
  }
  shared_ = new (memory) Shared;
}

MemoryStore::~MemoryStore() {
  if (shared_ != nullptr) {
    ::munmap(shared_, sizeof(Shared) + bytes_);
  }
}

Status MemoryStore::set(const std::string& key, std::string_view value) {
  SW_RETURN_IF_ERROR(noMemory_);
  {
    const std::lock_guard lock(*shared_);
    const std::size_t free = bytes_ - shared_->used, wanted = sizeof(EntryHead) + key.size() + value.size();
    if (wanted > free || std::max(key.size(), value.size()) > UINT32_MAX) {
      return {StatusCode::kSystem,
              fmt::format("a memory store of {} bytes has {} left, and the key '{}' needs {}: make it with more",
                          bytes_, free, key, wanted)};
    }
    char* at = shared_->log() + shared_->used;
    const EntryHead head{static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())};
    std::memcpy(at, &head, sizeof(head));
    std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), at + sizeof(head)));
    shared_->used += wanted;
  }
  shared_->numSets.fetch_add(1, std::memory_order_seq_cst);
  internal::futexWakeAll(shared_->numSets);
  return Status::ok();
}

bool MemoryStore::find(const std::string& key, std::string* value) {
  const std::lock_guard lock(*shared_);
  bool found = false;
  for (std::uint64_t at = 0; at < shared_->used;) {
    EntryHead head;
    std::memcpy(&head, shared_->log() + at, sizeof(head));
    const char* keyAt = shared_->log() + at + sizeof(head);
    if (std::string_view(keyAt, head.keyBytes) == key) {
      value->assign(keyAt + head.keyBytes, head.valueBytes);  // a later entry of the same key wins
      found = true;
    }
    at += sizeof(head) + head.keyBytes + head.valueBytes;
  }
  return found;
}

Result<std::string> MemoryStore::get(const std::string& key, Deadline deadline) {
  SW_RETURN_IF_ERROR(noMemory_);
  internal::InterruptibleWait slices(deadline);
  while (true) {
    const std::uint32_t seen = shared_->numSets.load(std::memory_order_seq_cst);
    std::string value;
    if (find(key, &value)) {
      return value;
    }
    const Deadline now = Clock::now();
    if (now >= deadline) {
      return Status(StatusCode::kTimeout, fmt::format("nobody set the key '{}' of a memory store in time", key));
    }
    if (slices.isInterrupted()) {
      return internal::interruptedStatus(fmt::format("waiting for the key '{}' of a memory store", key));
    }
    internal::futexWait(shared_->numSets, seen,
                        std::clamp<Duration>(slices.sliceEnd() - now, Duration(1), kLongestSleep));
  }
}

}  // namespace shardwire
