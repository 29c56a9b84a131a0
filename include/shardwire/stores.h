// Stores for programs without a store of their own: for ranks that share a folder, and for ranks that are threads or
// forks of one program. Any thread may call any method at any time, and so may other processes that share the folder or
// the memory. A reader sees a value completely or not at all. Values are not removed: a rank's values must stay
// readable until all ranks have joined. So each group needs a store of its own.
#pragma once

#include <cstddef>
#include <string>

#include "shardwire/export.h"
#include "shardwire/store.h"

namespace shardwire {

// Each key is a file. For independently started processes, on one host or on hosts that share a folder.
class SHARDWIRE_EXPORT FileStore final : public Store {
 public:
  // File names begin with `name`, so the stores of several groups can share a folder under different names. The first
  // set() makes a missing folder. The folder must hold no files of earlier jobs: a rank that finds such files under the
  // same name would try to join the earlier job. Nothing is removed, not even by the destructor: the owner of the
  // folder removes it after the groups were made.
  explicit FileStore(std::string folder, std::string name = {});

  // Keys are any bytes. File systems limit names, commonly to 255 bytes: a key may have 200 letters and digits, and
  // other bytes count three times. Only this user can read the files (mode 0600), since published values let other
  // processes join. A failed write is repeated for 0.1 s in all, because network file systems sometimes refuse a write.
  // After that the result is kSystem with the path and errno, and the old value stays. A writer that is killed may
  // leave a file whose name ends in ".tmp".
  Status set(const std::string& key, std::string_view value) override;
  // Looks every millisecond at first, later less often (every 0.1 s). Looks at least once, even when the deadline has
  // passed. kSystem with the path and errno when a file exists but cannot be read.
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::string pathOf(const std::string& key) const;

  const std::string folder_;
  const std::string name_;
};

// In anonymous shared memory, for ranks that are threads of one process, or that were forked after the store was made.
// Leaves nothing behind, and a process killed inside a call harms no other process. Each forked process has its own
// mapping, so destroying one mapping harms no other.
class SHARDWIRE_EXPORT MemoryStore final : public Store {
 public:
  // Room for `bytes` bytes of keys and values, plus 8 for each set(); unused room takes no memory. Room is never given
  // back, not even the room of a replaced value. Where the system has no memory, set() and get() return an error.
  explicit MemoryStore(std::size_t bytes = std::size_t{16} << 20);
  ~MemoryStore() override;
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  // kSystem when the room is used up.
  Status set(const std::string& key, std::string_view value) override;
  // Sleeps until any key is set, then looks. Looks at least once, even when the deadline has passed.
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  struct Shared;
  bool find(const std::string& key, std::string* value);

  const std::size_t bytes_;
  Shared* shared_ = nullptr;  // null: `noMemory_` says why
  Status noMemory_;
};

}  // namespace shardwire
