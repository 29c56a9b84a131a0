// What a process tells all others of its host that have its arena, in the first page of that: whether it lives, and the bell of its
// progress thread. Plain shared memory; every word is written by its owner, but for the bell.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint64_t kShmPageMagic = 0x4547415057485357;  // "WSHWPAGE" as bytes

struct ShmProcessPage {
  std::uint64_t magic;
  alignas(64) std::atomic<std::uint32_t> bell;  // counts rings; the progress thread waits on it
  // A thread of the owner holds the robust mutex as long as it has groups; the kernel marks it when that thread dies, before it frees the
  // process's memory.
  alignas(64) pthread_mutex_t liveness;

  // The owner's, before anybody else has the page.
  Status init();
  // On one thread of the owner. Until release(), the page stays mapped.
  void hold();
  void release();
  // From any process.
  bool isOwnerDead() const;
};

}  // namespace shardwire::internal
