// Shared memory of this process that contains the inboxes of all groups: one anonymous, sealed memfd, which each peer
// process gets once and maps piece by piece. The size is address space only (1 PiB, or the limit of ulimit -f). No
// place is given out twice, so a peer that still writes to a place given back by the owner does no harm. The first page
// belongs to the process (ShmProcessPage). Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backend/base/fd.h"
#include "backend/base/page_size.h"
#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::size_t kShmPage = 4096;

class ShmArena {
 public:
  static Result<ShmArena> create();
  ShmArena(ShmArena&& other) noexcept : fd_(std::move(other.fd_)), bytes_(other.bytes_), used_(other.used_.load()) {}

  int fd() const { return fd_.get(); }
  std::uint64_t bytes() const { return bytes_; }
  // The offset of `bytes` zeroes, at a page boundary; kSystem when the arena is used up.
  Result<std::uint64_t> take(std::size_t bytes);
  // Gives the memory of these bytes back to the system.
  void giveBack(std::uint64_t offset, std::size_t bytes) const;

 private:
  ShmArena(Fd fd, std::uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  Fd fd_;
  std::uint64_t bytes_;
  std::atomic<std::uint64_t> used_{inWholePages(kShmPage)};
};

}  // namespace shardwire::internal
