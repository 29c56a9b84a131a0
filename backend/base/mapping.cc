#include "backend/base/mapping.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "backend/base/page_size.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

Status mapError(const char* what, std::size_t size, int error) {
  const char* hint =
      error == ENOMEM ? " (address space is limited: see ulimit -v, vm.max_map_count and SHARDWIRE_HEAP_BYTES)" : "";
  return systemError(fmt::format("cannot map {} bytes of {}{}", size, what, hint), error);
}

}  // namespace

Mapping::~Mapping() {
  if (bytes_ != nullptr) {
    ::munmap(bytes_, size_);
  }
}

Result<Mapping> Mapping::shared(int fd, std::uint64_t offset, std::size_t size, Access access, const char* what,
                                std::size_t alignment) {
  SW_CHECK(size > 0 && (alignment & (alignment - 1)) == 0);
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (alignment <= pageBytes()) {
    void* mapped = ::mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd, static_cast<off_t>(offset));
    return mapped == MAP_FAILED ? Result<Mapping>(mapError(what, size, errno))
                                : Mapping(static_cast<std::byte*>(mapped), size);
  }
  // Address space with room to align in; what is left over at both ends is given back.
  void* reserved = ::mmap(nullptr, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return mapError(what, size, errno);
  }
  std::byte* start = static_cast<std::byte*>(reserved);
  const std::size_t address = reinterpret_cast<std::size_t>(start);
  const std::size_t before = roundUp(address, alignment) - address;
  if (before > 0) {
    ::munmap(start, before);
  }
  Mapping mapping(start + before, size);
  ::munmap(start + before + inWholePages(size), alignment - before);
  if (::mmap(mapping.bytes_, size, protection, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd,
             static_cast<off_t>(offset)) == MAP_FAILED) {
    return mapError(what, size, errno);
  }
  return mapping;
}

}  // namespace shardwire::internal
