#include "backend/base/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

Result<Fd> makeMemfd(const char* name, std::uint64_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    // The kernel would not refuse but kill (SIGXFSZ).
    return Status{StatusCode::kSystem, fmt::format("{} needs {} bytes, but files are limited to {}: raise ulimit -f",
                                                   name, bytes, limit.rlim_cur)};
  }
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.isOpen()) {
    return systemError(fmt::format("memfd_create for {}{}", name, errno == EMFILE ? " (raise ulimit -n)" : ""), errno);
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 || ::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return systemError(fmt::format("cannot size {} to {} bytes", name, bytes), errno);
  }
  return fd;
}

Status checkMemfd(int fd, std::uint64_t bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return systemError("fstat of a peer's memory", errno);
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return {StatusCode::kMismatch, "a peer's memory is not a sealed memfd"};
  }
  if (static_cast<std::uint64_t>(status.st_size) != bytes) {
    return {StatusCode::kMismatch, fmt::format("a peer's memory has {} bytes, {} are expected", status.st_size, bytes)};
  }
  return Status::ok();
}

}  // namespace shardwire::internal
