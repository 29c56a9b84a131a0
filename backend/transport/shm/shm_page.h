// The state of a process for all processes of its host that have its arena. The first page of the arena has the bell of
// the process's progress thread, which all may ring. The liveness of the process is kept in separate memory, which only
// the process can write: the C library and the kernel follow the contents of a robust mutex, so a stray write of a peer
// would end the process.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint64_t kShmPageMagic = 0x4547415057485357;  // "WSHWPAGE" as bytes

struct ShmProcessPage {
  std::uint64_t magic;
  alignas(64) std::atomic<std::uint32_t> bell;  // counts rings; the progress thread waits for a change
};

struct ShmLiveness {
  // A thread of the owner holds the robust mutex as long as the owner has groups; the kernel marks the mutex when this
  // thread dies, before the kernel frees the process's memory.
  pthread_mutex_t mutex;

  // On one thread of the owner. Until release(), the memory stays mapped.
  void hold();
  void release();
  // From any process.
  bool isOwnerDead() const;
};

// The owner's liveness: memory mapped here for writing; no further writable mapping is possible.
class OwnLiveness {
 public:
  static Result<OwnLiveness> create();
  ShmLiveness& operator*() const { return *reinterpret_cast<ShmLiveness*>(page_.bytes()); }
  int fd() const { return fd_.get(); }

 private:
  OwnLiveness(Fd fd, Mapping page) : fd_(std::move(fd)), page_(std::move(page)) {}

  Fd fd_;
  Mapping page_;
};

// Another process's liveness, checked and mapped for reading; `fd` may be closed afterwards.
Result<Mapping> mapLiveness(int fd);

}  // namespace shardwire::internal
