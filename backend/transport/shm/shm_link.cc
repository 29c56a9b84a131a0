#include "backend/transport/shm/shm_link.h"

#include <fmt/format.h>

#include "backend/base/memfd.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/net_socket.h"
#include "backend/fabric/proof.h"
#include "backend/fabric/unix_socket.h"
#include "backend/transport/shm/cross_memory.h"
#include "backend/transport/shm/peer_heap.h"
#include "backend/transport/shm/shm_arena.h"

namespace shardwire::internal {

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
