// The objects of this process for the transport over shared memory, shared with other processes of the host: the arena
// with the inboxes of the groups, the process's page at the arena's start, the mark by which other processes see this
// process's life, the shared heap, and a link to each process whose memory was requested. So a further group of ranks
// needs no handshake if the processes are linked: the inboxes are places in arenas known to both processes.
//
// A link has one direction: the requesting process gets the other's memory, and the other requests a separate link. So
// either may begin, at any time, and the two need no agreement on existing links:
//
//   this process                      the other process's thread, whatever its groups do
//   hello: its token     ------->     checks the user (kernel) and the token
//                        <-------     welcome + descriptors of arena, liveness and heap, or a refusal with its reason
//
// A part of the process's fabric, made with the first group that may use shared memory. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/base/mapping.h"
#include "backend/base/mutex.h"
#include "backend/fabric/fabric.h"
#include "backend/memory/shared_heap.h"
#include "backend/transport/shm/shm_arena.h"
#include "backend/transport/shm/shm_dialer.h"
#include "backend/transport/shm/shm_link.h"
#include "backend/transport/shm/shm_message.h"
#include "backend/transport/shm/shm_page.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class ShmFabric final : public FabricPart {
 public:
  // Holds the process's fabric. kSystem when this process can make no shared memory.
  static Result<std::shared_ptr<ShmFabric>> instance();

  Fabric& fabric() { return fabric_; }
  const ProcessAddress& address() const { return fabric_.address(); }
  ShmArena& arena() { return arena_; }
  ShmProcessPage& page() { return *reinterpret_cast<ShmProcessPage*>(page_.bytes()); }
  ShmLiveness& liveness() { return *liveness_; }
  // kSystem when this process cannot have a heap: then no rank is joined to this process by shared memory.
  const Result<SharedHeap*>& heap() const { return heap_; }

  // The link to the process at that address; made if there is none. Errors of ShmLink::dial().
  Result<std::shared_ptr<const ShmLink>> linkTo(const ProcessAddress& to, std::string_view jobToken,
                                                const WaitLimit& limit);
  // The same without waiting. An existing link is the outcome at once, and `onDone` is not called. Only after
  // Fabric::listen().
  std::shared_ptr<ShmLinkRequest> linkSoon(const ProcessAddress& to, std::string_view jobToken,
                                           std::function<void()> onDone);

  // Memory of the arena that an ended group left, while peers may still write there. `isFree` returns whether no peer
  // does, and is called again whenever a group is made or a peer's process ends.
  struct Remains {
    std::vector<Mapping> mappings;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::function<bool(ShmFabric&)> isFree;
  };
  void keepUntilFree(Remains remains);
  void clearRemains();
  std::size_t numRemains();

  void begin() override { liveness().hold(); }
  void end() override { liveness().release(); }
  bool appendSockets(std::vector<pollfd>* entries) override;
  void serve() override;
  void guestLeft() override { clearRemains(); }
  HostWelcome welcome() override;

 private:
  ShmFabric(Fabric& fabric, ShmArena arena, Mapping page, OwnLiveness liveness, std::uint64_t probeSecret);
  static Result<std::unique_ptr<FabricPart>> create(Fabric& fabric);
  std::shared_ptr<const ShmLink> knownLink(const ProcessAddress& to);
  std::shared_ptr<const ShmLink> keep(const ProcessAddress& to, const std::shared_ptr<const ShmLink>& made);

  Fabric& fabric_;
  ShmArena arena_;
  Mapping page_;
  const OwnLiveness liveness_;
  const Result<SharedHeap*> heap_;
  std::vector<std::byte> probe_;  // the pattern for the trial reads of other processes
  const std::uint64_t probeSecret_;
  ShmDialer dialer_;

  Mutex mutex_;
  std::map<std::string, std::weak_ptr<const ShmLink>> links_
      SW_GUARDED_BY(mutex_);  // by the other process's socket name
  std::vector<Remains> remains_ SW_GUARDED_BY(mutex_);
  std::uint64_t numLooks_ SW_GUARDED_BY(mutex_) = 0;  // calls of clearRemains()
};

}  // namespace shardwire::internal
