#include "bench/bench_store.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>

#include "bench/bench_ranks.h"

namespace shardwire::bench {

namespace {

constexpr std::size_t kLogBytes = std::size_t{4} << 20;

struct EntryHead {
  std::size_t keyBytes;
  std::size_t valueBytes;
};

}  // namespace

struct BenchStore::Shared {
  std::atomic<bool> isLocked{false};
  std::size_t used = 0;  // under the lock
  std::array<char, kLogBytes> log;

  void lock() {
    while (isLocked.exchange(true, std::memory_order_acquire)) {
      ::sched_yield();
    }
  }
  void unlock() { isLocked.store(false, std::memory_order_release); }

  // The newest value of the key. Precondition: locked.
  std::optional<std::string> find(const std::string& key) const {
    std::optional<std::string> found;
    for (std::size_t at = 0; at < used;) {
      EntryHead head;
      std::memcpy(&head, log.data() + at, sizeof(head));
      const char* text = log.data() + at + sizeof(head);
      if (std::string_view(text, head.keyBytes) == key) {
        found = std::string(text + head.keyBytes, head.valueBytes);
      }
      at += sizeof(head) + head.keyBytes + head.valueBytes;
    }
    return found;
  }
};

BenchStore::BenchStore() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    fail("no shared memory for the store");
  }
  shared_ = new (memory) Shared;
}

BenchStore::~BenchStore() {
  ::munmap(shared_, sizeof(Shared));
}

Status BenchStore::set(const std::string& key, std::string_view value) {
  const EntryHead head{key.size(), value.size()};
  const std::size_t bytes = sizeof(head) + key.size() + value.size();
  shared_->lock();
  const bool fits = shared_->used + bytes <= kLogBytes;
  if (fits) {
    char* to = shared_->log.data() + shared_->used;
    std::memcpy(to, &head, sizeof(head));
    std::copy(value.begin(), value.end(), std::copy(key.begin(), key.end(), to + sizeof(head)));
    shared_->used += bytes;
  }
  shared_->unlock();
  return fits ? Status::ok() : Status(StatusCode::kSystem, "the store of the bench is full");
}

Result<std::string> BenchStore::get(const std::string& key, Deadline deadline) {
  while (true) {
    shared_->lock();
    std::optional<std::string> value = shared_->find(key);
    shared_->unlock();
    if (value.has_value()) {
      return *std::move(value);
    }
    if (Clock::now() >= deadline) {
      return Status(StatusCode::kTimeout, "nobody set " + key);
    }
    ::sched_yield();
  }
}

}  // namespace shardwire::bench
