#include "backend/transport/shm/shm_arena.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "backend/base/log.h"
#include "backend/base/memfd.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

// The kernel would kill a process that makes a longer file.
std::uint64_t longestFile() {
  rlimit limit{};
  const bool isLimited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return isLimited ? limit.rlim_cur / pageBytes() * pageBytes() : kMostBytes;
}

}  // namespace

Result<ShmArena> ShmArena::create() {
  const std::uint64_t bytes = std::min(kMostBytes, longestFile());
  auto fd = makeMemfd("shardwire-inboxes", bytes);
  SW_RETURN_IF_ERROR(fd.status());
  fd->closeInChildren();
  return ShmArena(std::move(*fd), bytes);
}

Result<std::uint64_t> ShmArena::take(std::size_t bytes) {
  const std::uint64_t whole = inWholePages(bytes);
  const std::uint64_t offset = used_.fetch_add(whole, std::memory_order_relaxed);
  if (offset > bytes_ || whole > bytes_ - offset) {
    return Status{
        StatusCode::kSystem,
        fmt::format("all {} bytes of address space for inboxes are used up: too many groups were made by this "
                    "process, or ulimit -f is low; SHARDWIRE_RING_BYTES makes each smaller",
                    bytes_)};
  }
  return offset;
}

void ShmArena::giveBack(std::uint64_t offset, std::size_t bytes) const {
  const auto begin = static_cast<off_t>(offset);
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, static_cast<off_t>(bytes)) != 0) {
    logDebug("{}", systemError("giving an inbox's memory back", errno).message());
  }
}

}  // namespace shardwire::internal
