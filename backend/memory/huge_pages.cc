#include "backend/memory/huge_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "backend/base/fd.h"
#include "backend/base/log.h"
#include "backend/base/system_error.h"

#ifndef MADV_COLLAPSE  // Linux 6.1; glibc 2.37
#define MADV_COLLAPSE 25
#endif

namespace shardwire::internal {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

}  // namespace

bool HugePages::areOnDemand() {
  // The file reads "always within_size advise [never] deny force". No such file: a kernel without huge pages for shared
  // memory.
  const Fd file(::open("/sys/kernel/mm/transparent_hugepage/shmem_enabled", O_RDONLY | O_CLOEXEC));
  std::array<char, 128> bytes{};
  const ssize_t read = file.isOpen() ? ::read(file.get(), bytes.data(), bytes.size()) : 0;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(read, 0)));
  return text.find('[') != std::string::npos && text.find("[never]") == std::string::npos &&
         text.find("[deny]") == std::string::npos;
}

bool HugePages::isUseful() {
  if (use_.load(std::memory_order_relaxed) == Use::kUnknown) {
    use_.store(areOnDemand() ? Use::kNone : Use::kAsked, std::memory_order_relaxed);
  }
  return use_.load(std::memory_order_relaxed) == Use::kAsked;
}

void HugePages::back(std::byte* start, std::size_t size) {
  if (!isUseful()) {
    return;
  }
  // The kernel collapses only where there is a page already. One call for all: each drains queues of every core first,
  // which takes milliseconds on a busy machine.
  for (std::size_t at = 0; at < size; at += kHugePageBytes) {
    *static_cast<volatile std::byte*>(start + at) = std::byte{0};
  }
  if (::madvise(start, size, MADV_COLLAPSE) != 0 && errno == EINVAL) {
    logDebug("no huge pages for the shared heap: madvise(MADV_COLLAPSE): {}", errnoText(errno));
    use_.store(Use::kNone, std::memory_order_relaxed);
  }
  // Other errors: no huge page is free now. The remaining pages come one by one at the first touch.
}

}  // namespace shardwire::internal
