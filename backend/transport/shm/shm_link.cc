#include "backend/transport/shm/shm_link.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <map>

#include "backend/base/memfd.h"
#include "backend/base/per_process.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/net_socket.h"
#include "backend/fabric/proof.h"
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/shm_arena.h"

namespace shardwire::internal {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// The mapped heaps of other processes: one mapping per process pair, however many groups join the two. Process-wide by
// nature, like the address space. An entry expires with the last connection that uses the heap.
struct PeerHeaps {
  Mutex mutex;
  std::map<RandomId, std::weak_ptr<const Mapping>> heaps SW_GUARDED_BY(mutex);
};

Result<Mapping> mapChecked(int fd, std::uint64_t bytes, pid_t owner) {
  if (Status checked = checkMemfd(fd, bytes); !checked.isOk()) {
    return Status{checked.code(), fmt::format("the shared heap of pid {}: {}", owner, checked.message())};
  }
  auto mapping = Mapping::shared(fd, 0, bytes, Access::kRead, "a peer's shared heap", kHugePage);
  if (mapping.isOk()) {
    ::madvise(mapping->bytes(), bytes, MADV_HUGEPAGE);  // advice only: a kernel without huge shared pages refuses
    ::madvise(mapping->bytes(), bytes, MADV_DONTDUMP);  // keeps the peers' memory out of core files
  }
  return mapping;
}

// Maps `fd` (checked: size and seals), or returns the mapping already made by another connection to the same process.
Result<std::shared_ptr<const Mapping>> mapPeerHeap(const RandomId& process, int fd, std::uint64_t bytes, pid_t owner) {
  PeerHeaps& known = PerProcess<PeerHeaps>::get();
  const MutexLock lock(known.mutex);
  std::erase_if(known.heaps, [](const auto& entry) { return entry.second.expired(); });
  if (auto heap = known.heaps[process].lock(); heap != nullptr && heap->size() == bytes) {
    return heap;
  }
  auto mapping = mapChecked(fd, bytes, owner);
  SW_RETURN_IF_ERROR(mapping.status());
  auto shared = std::make_shared<const Mapping>(std::move(*mapping));
  known.heaps[process] = shared;
  return shared;
}

}  // namespace

Result<ShmLink::Question> ShmLink::ask(Fd socket, const ProcessAddress& to, std::string_view jobToken,
                                       const RandomId& process, const WaitLimit& limit) {
  const auto who = checkUser(socket);
  SW_RETURN_IF_ERROR(who.status());
  SW_RETURN_IF_ERROR(sendUnix(socket, encodeHostHello({process, makeHostToken(to.token, jobToken)}), {}, limit));
  return Question{std::move(socket), who->pid};
}

Result<std::shared_ptr<const ShmLink>> ShmLink::dial(const ProcessAddress& to, std::string_view jobToken,
                                                     const RandomId& process, const WaitLimit& limit) {
  auto socket = dialProcess(to.socketName, limit);
  SW_RETURN_IF_ERROR(socket.status());
  auto question = ask(std::move(*socket), to, jobToken, process, limit);
  SW_RETURN_IF_ERROR(question.status());
  return answered(std::move(*question), to, limit);
}

Result<std::shared_ptr<const ShmLink>> ShmLink::answered(Question question, const ProcessAddress& to,
                                                         const WaitLimit& limit) {
  auto answer = receiveUnix(question.socket, limit);
  SW_RETURN_IF_ERROR(answer.status());
  const auto welcome = decodeShmWelcome(answer->bytes);
  SW_RETURN_IF_ERROR(welcome.status());
  auto& fds = answer->fds;
  if (welcome->process != to.process || fds.size() != (welcome->heapBytes > 0 ? 3U : 2U)) {
    return Status{StatusCode::kMismatch,
                  fmt::format("its answer is of another process, or came with {} descriptors", fds.size())};
  }
  if (welcome->arenaBytes < kShmPage) {
    return Status{StatusCode::kMismatch, fmt::format("its arena has {} bytes", welcome->arenaBytes)};
  }
  if (const Status checked = checkMemfd(fds[0].get(), welcome->arenaBytes); !checked.isOk()) {
    return Status{checked.code(), fmt::format("its inboxes: {}", checked.message())};
  }
  std::shared_ptr<ShmLink> link(new ShmLink);
  link->pid_ = question.pid;
  link->arena_ = std::move(fds[0]);
  link->arena_.closeInChildren();
  link->arenaBytes_ = welcome->arenaBytes;
  auto page = Mapping::shared(link->arena_.get(), 0, kShmPage, Access::kReadWrite, "the page of another process");
  SW_RETURN_IF_ERROR(page.status());
  link->page_ = std::move(*page);
  if (link->page().magic != kShmPageMagic) {
    return Status{StatusCode::kUnsupported,
                  "it runs another build of shardwire: the first page of its arena is of another kind"};
  }
  auto liveness = mapLiveness(fds[1].get());
  SW_RETURN_IF_ERROR(liveness.status());
  link->liveness_ = std::move(*liveness);
  link->probeAddress_ = welcome->probeAddress;
  link->probeSecret_ = welcome->probeSecret;
  if (welcome->heapBytes > 0) {
    auto heap = mapPeerHeap(welcome->process, fds[2].get(), welcome->heapBytes, link->pid_);
    if (heap.isOk()) {
      link->heap_ = std::move(*heap);
    } else if (heap.status().code() == StatusCode::kSystem) {
      // No room for the heap here: the peer is notified, and stages tensors in its heap.
      link->whyNoHeap_ = heap.status().message();
    } else {
      return heap.status();
    }
  }
  link->socket_ = std::move(question.socket);
  return std::shared_ptr<const ShmLink>(std::move(link));
}

Result<CrossMemorySpeed> ShmLink::readSpeed() const {
  const MutexLock lock(mutex_);
  if (readSpeed_ == nullptr) {
    readSpeed_ = std::make_unique<const Result<CrossMemorySpeed>>(
        pid_ == 0 ? Result<CrossMemorySpeed>(
                        Status{StatusCode::kUnsupported, "it is in a pid namespace that this process does not see"})
                  : probeCrossMemory(pid_, probeAddress_, probeSecret_, fmt::format("pid {}", pid_).c_str()));
  }
  return *readSpeed_;
}

bool ShmLink::isHungUp() const {
  return internal::isHungUp(socket_);
}

}  // namespace shardwire::internal
