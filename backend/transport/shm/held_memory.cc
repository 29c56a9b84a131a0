#include "backend/transport/shm/held_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <string_view>
#include <utility>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/base/page_size.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {
namespace {

// The lock orders a release before a new use. Once the owner is notified of the release, the owner may give the same
// pages to a new block, which another thread of this process then holds: that thread must not make the pages writable
// before this thread has made them read-only. Groups may hold the same pages separately: the last holder makes the
// pages read-only.
struct Protection {
  Mutex mutex;
  // By the first byte of the held pages: the number of holders; all hold the same length.
  std::map<const std::byte*, int> holders SW_GUARDED_BY(mutex);
};

// Reads the letter of the process's state: the word behind the name, which is in brackets and may contain any
// character.
bool isStopped(pid_t pid) {
  const Fd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char bytes[512];
  const ssize_t size = file.isOpen() ? ::read(file.get(), bytes, sizeof bytes) : 0;
  const std::string_view text(bytes, size > 0 ? static_cast<std::size_t>(size) : 0);
  const std::size_t end = text.rfind(')');
  if (end == std::string_view::npos || end + 2 >= text.size()) {
    return false;
  }
  return text[end + 2] == 'T' || text[end + 2] == 't';
}

class OwnProcessMemory final : public HeldMemory {
 public:
  explicit OwnProcessMemory(std::byte* bytes) : bytes_(bytes) {}
  std::byte* bytes() const override { return bytes_; }
  void release(const std::function<void()>& notify) override { notify(); }
  bool isOwnerGone() const override { return false; }  // the owner is this process
  std::string ownersState() const override { return ""; }

 private:
  std::byte* const bytes_;
};

class PeerHeapMemory final : public HeldMemory {
 public:
  PeerHeapMemory(std::shared_ptr<const ShmLink> link, std::shared_ptr<ShmFabric> fabric, std::byte* bytes,
                 std::size_t size)
      : link_(std::move(link)), fabric_(std::move(fabric)), bytes_(bytes), size_(size) {}
  ~PeerHeapMemory() override {
    if (fabric_ != nullptr) {
      release([] {});
    }
  }

  Status makeWritable() const {
    Protection& all = PerProcess<Protection>::get();
    const MutexLock lock(all.mutex);
    ++all.holders[bytes_];  // also on failure: release() follows
    return ::mprotect(bytes_, size_, PROT_READ | PROT_WRITE) == 0
               ? Status::ok()
               : systemError(
                     fmt::format("cannot make {} bytes of a peer's heap writable (see vm.max_map_count)", size_),
                     errno);
  }

  std::byte* bytes() const override { return bytes_; }
  void release(const std::function<void()>& notify) override {
    {
      Protection& all = PerProcess<Protection>::get();
      const MutexLock lock(all.mutex);
      notify();
      const auto mine = all.holders.find(bytes_);
      if (mine == all.holders.end() || --mine->second == 0) {  // none in a child of fork()
        // The pages may stay writable when the kernel has no room for one more boundary: then only a stray write goes
        // unnoticed.
        (void)::mprotect(bytes_, size_, PROT_READ);
        if (mine != all.holders.end()) {
          all.holders.erase(mine);
        }
      }
    }
    fabric_.reset();
  }
  bool isOwnerGone() const override { return link_->isHungUp(); }
  std::string ownersState() const override { return link_->pid() != 0 && isStopped(link_->pid()) ? "stopped" : ""; }

 private:
  const std::shared_ptr<const ShmLink> link_;  // holds the mapping
  std::shared_ptr<ShmFabric> fabric_;          // null: released, or holds no memory
  std::byte* const bytes_;
  const std::size_t size_;
};

}  // namespace

std::shared_ptr<HeldMemory> holdOwnProcess(const HeapPlace& place) {
  return std::make_shared<OwnProcessMemory>(reinterpret_cast<std::byte*>(place.address));
}

std::shared_ptr<HeldMemory> watchPeer(std::shared_ptr<const ShmLink> link) {
  return std::make_shared<PeerHeapMemory>(std::move(link), nullptr, nullptr, 0);
}

Result<std::shared_ptr<HeldMemory>> holdPeerHeap(std::shared_ptr<const ShmLink> link, std::shared_ptr<ShmFabric> fabric,
                                                 std::uint64_t offset, std::size_t size, const std::string& who) {
  const std::uint64_t heapBytes = link->heap()->size();
  if (offset % pageBytes() != 0 || size % pageBytes() != 0 || size == 0 || offset > heapBytes ||
      size > heapBytes - offset) {
    return Status{StatusCode::kMismatch,
                  fmt::format("{} says that {} bytes of symmetric memory lie at {} of its heap of {} bytes", who, size,
                              offset, heapBytes)};
  }
  std::byte* const bytes = link->heap()->bytes() + offset;
  auto held = std::make_shared<PeerHeapMemory>(std::move(link), std::move(fabric), bytes, size);
  SW_RETURN_IF_ERROR(held->makeWritable());
  return std::shared_ptr<HeldMemory>(std::move(held));
}

}  // namespace shardwire::internal
