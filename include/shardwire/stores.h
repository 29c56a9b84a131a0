// The stores that shardwire brings, for programs that have none: ranks on one folder, and ranks that are threads or forks of one program.
// Any thread may call any method at any time; so may other processes that share the folder or the memory. A value is seen whole or not at
// all. Values are not removed: ranks must find each other's until all have joined. So each group is made through a store of its own.
#pragma once

#include <cstddef>
#include <string>

#include "shardwire/store.h"

namespace shardwire {

// Each key is a file. For processes that somebody else started, on one host or on hosts that share a folder.
class FileStore final : public Store {
 public:
  // Files' names begin with `name`: stores of several groups share a folder under different ones. The folder is made by the first set()
  // where it is missing. It is empty of earlier jobs: a rank that finds what one left under the same name would try to join that. Nothing
  // is removed, not by the destructor either: who chose the folder removes it, once the groups are made.
  explicit FileStore(std::string folder, std::string name = {});

  // Keys are any bytes; the system bounds names of files, commonly at 255 bytes, so letters and digits may be 200 and other bytes count
  // three times. Files are this user's alone (mode 0600), since what ranks publish lets others join them. What cannot be written is tried
  // for 0.1 s in all, as network file systems refuse now and then; then it is kSystem with the path and errno, and the old value stays. A
  // writer that is killed may leave a file that ends in ".tmp".
  Status set(const std::string& key, std::string_view value) override;
  // Looks every millisecond at first, and less often the longer it waits (0.1 s). At least once, also when the deadline has passed. kSystem
  // with the path and errno when there is a file that cannot be read.
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::string pathOf(const std::string& key) const;

  const std::string folder_;
  const std::string name_;
};

// In anonymous shared memory, for ranks that are threads of one process, or forked after the store was made. Leaves nothing behind, and a
// process that is killed inside of it harms no other. Each process that forked has a mapping of its own: destroying one harms no other,
// too.
class MemoryStore final : public Store {
 public:
  // Room for `bytes` of keys and values, 8 more for each set(); what is not used takes no memory. Room is not given back, not that of a key
  // that is set again either. Where the system has no memory, set() and get() say so.
  explicit MemoryStore(std::size_t bytes = std::size_t{16} << 20);
  ~MemoryStore() override;
  MemoryStore(const MemoryStore&) = delete;
  MemoryStore& operator=(const MemoryStore&) = delete;

  // kSystem when the room is used up.
  Status set(const std::string& key, std::string_view value) override;
  // Sleeps until somebody sets a key, and looks. At least once, also when the deadline has passed.
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  struct Shared;
  bool find(const std::string& key, std::string* value);

  const std::size_t bytes_;
  Shared* shared_ = nullptr;  // null: `noMemory_` says why
  Status noMemory_;
};

}  // namespace shardwire
