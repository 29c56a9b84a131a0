// What a process tells all others of its host that have its arena. The first page of the arena has the bell of its progress thread, which
// all may ring. Whether the process lives stands in memory of its own, which only the process can write: the C library and the kernel
// follow what stands in a robust mutex, so a stray write of a peer would end the process.
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
  alignas(64) std::atomic<std::uint32_t> bell;  // counts rings; the progress thread waits on it
};

struct ShmLiveness {
  // A thread of the owner holds the robust mutex as long as it has groups; the kernel marks it when that thread dies, before it frees the
  // process's memory.
  pthread_mutex_t mutex;

  // On one thread of the owner. Until release(), the memory stays mapped.
  void hold();
  void release();
  // From any process.
  bool isOwnerDead() const;
};

// The owner's liveness: memory that is mapped here for writing, and that nobody can map so again.
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

// Another process's, checked and mapped for reading; `fd` may be closed then.
Result<Mapping> mapLiveness(int fd);

}  // namespace shardwire::internal
