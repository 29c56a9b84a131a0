// Shared memory of this process in which the inboxes of all its groups lie: one anonymous, sealed memfd, which each peer process gets once
// and maps piece by piece. Its size is address space only (1 PiB, or what ulimit -f allows). No place is given out twice, so that whoever
// still writes to one that its owner gave back can do no harm. The first page is the process's own
// (ShmProcessPage). Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/base/fd.h"
#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::size_t kShmPage = 4096;

class ShmArena {
 public:
  static Result<ShmArena> create();
  ShmArena(ShmArena&& other) noexcept : fd_(std::move(other.fd_)), bytes_(other.bytes_), used_(other.used_.load()) {}

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  // The offset of `bytes` zeroes, on a page; kSystem when the arena is used up.
  Result<std::uint64_t> take(std::size_t bytes);
  // Gives their memory back to the system.
  void giveBack(std::uint64_t offset, std::size_t bytes) const;

 private:
  ShmArena(Fd fd, std::uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  Fd fd_;
  std::uint64_t bytes_;
  std::atomic<std::uint64_t> used_{kShmPage};
};

}  // namespace shardwire::internal
