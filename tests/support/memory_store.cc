#include "tests/support/memory_store.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstring>
#include <new>

#include "backend/base/futex.h"

namespace shardwire::testing {

MemoryStore::MemoryStore(std::size_t bytes) : bytes_(bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  SW_CHECK(memory != MAP_FAILED);
  shared_ = new (memory) Shared{};
  pthread_mutexattr_t attributes;
  SW_CHECK(::pthread_mutexattr_init(&attributes) == 0);
  SW_CHECK(::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
  SW_CHECK(::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
  SW_CHECK(::pthread_mutex_init(&shared_->mutex, &attributes) == 0);
  ::pthread_mutexattr_destroy(&attributes);
}

MemoryStore::~MemoryStore() {
  ::munmap(shared_, bytes_);
}

void MemoryStore::lock() {
  if (::pthread_mutex_lock(&shared_->mutex) == EOWNERDEAD) {
    ::pthread_mutex_consistent(&shared_->mutex);  // an entry counts only once `used` covers it, so nothing is half written
  }
}

Status MemoryStore::set(const std::string& key, std::string_view value) {
  lock();
  const std::size_t room = bytes_ - sizeof(Shared) - shared_->used;
  if (sizeof(Entry) + key.size() + value.size() > room) {
    ::pthread_mutex_unlock(&shared_->mutex);
    return {StatusCode::kSystem, "the test store is full"};
  }
  char* at = log() + shared_->used;
  const Entry entry{static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size())};
  std::memcpy(at, &entry, sizeof(entry));
  std::memcpy(at + sizeof(entry), key.data(), key.size());
  std::memcpy(at + sizeof(entry) + key.size(), value.data(), value.size());
  shared_->used += sizeof(entry) + key.size() + value.size();
  ::pthread_mutex_unlock(&shared_->mutex);
  shared_->numSets.fetch_add(1, std::memory_order_seq_cst);
  internal::futexWakeAll(shared_->numSets);
  return Status::ok();
}

bool MemoryStore::find(const std::string& key, std::string* value) {
  lock();
  bool found = false;
  for (std::uint64_t at = 0; at < shared_->used;) {
    Entry entry;
    std::memcpy(&entry, log() + at, sizeof(entry));
    const char* keyAt = log() + at + sizeof(entry);
    if (std::string_view(keyAt, entry.keyBytes) == key) {
      value->assign(keyAt + entry.keyBytes, entry.valueBytes);  // a later entry of the same key wins
      found = true;
    }
    at += sizeof(entry) + entry.keyBytes + entry.valueBytes;
  }
  ::pthread_mutex_unlock(&shared_->mutex);
  return found;
}

Result<std::string> MemoryStore::get(const std::string& key, Deadline deadline) {
  while (true) {
    const std::uint32_t seen = shared_->numSets.load(std::memory_order_seq_cst);
    std::string value;
    if (find(key, &value)) {
      return value;
    }
    const Deadline now = Clock::now();
    if (now >= deadline) {
      return Status{StatusCode::kTimeout, fmt::format("the store has no key {}", key)};
    }
    internal::futexWait(shared_->numSets, seen, std::min<Duration>(deadline - now, std::chrono::milliseconds(100)));
  }
}

std::uint32_t MemoryStore::numSets() const {
  return shared_->numSets.load(std::memory_order_seq_cst);
}

}  // namespace shardwire::testing
