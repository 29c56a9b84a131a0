// A Store for tests: a log of entries in anonymous shared memory. Serves ranks that are threads, and ranks forked after it was made. Leaves
// nothing behind, and a process that is killed inside it harms nobody.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "shardwire/store.h"

namespace shardwire::testing {

class MemoryStore final : public Store {
 public:
  explicit MemoryStore(std::size_t bytes = std::size_t{16} << 20);
  ~MemoryStore() override;
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;
  // How many set() calls there were, by all ranks.
  std::uint32_t numSets() const;

 private:
  struct Shared {
    pthread_mutex_t mutex;
    std::atomic<std::uint32_t> numSets;  // futex
    std::uint64_t used;                  // bytes of the log
  };
  struct Entry {
    std::uint32_t keyBytes;
    std::uint32_t valueBytes;
  };

  void lock();
  bool find(const std::string& key, std::string* value);
  char* log() const { return reinterpret_cast<char*>(shared_ + 1); }

  std::size_t bytes_;
  Shared* shared_;
};

}  // namespace shardwire::testing
