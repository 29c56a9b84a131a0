// What the groups of one process share on this host: the arena in which their inboxes lie, the bell of its progress thread in
// the first page of that, the mark by which others see that it lives, the socket at which other processes ask for it,
// and a link to each process that this one asked. So a further group of ranks that know each other costs no hand-shake: its inboxes are
// places in arenas that both have.
//
// A link goes one way: who asks gets the other's memory, and the other asks for itself. So either may begin, at any time, and nobody has to
// agree on who is linked already:
//
//   this process                      another one's thread, whatever its groups do
//   hello: its token     ------->     checks the user (kernel) and the token
//                        <-------     welcome + descriptors of arena, liveness and heap, or a refusal with its reason
//
// One per process, made with its first group and gone with its last; what is in use holds it. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/fabric/fd_watches.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/link_listener.h"
#include "backend/memory/shared_heap.h"
#include "backend/transport/shm/shm_arena.h"
#include "backend/transport/shm/shm_dialer.h"
#include "backend/transport/shm/shm_link.h"
#include "backend/transport/shm/shm_listener.h"
#include "backend/transport/shm/shm_message.h"
#include "backend/transport/shm/shm_page.h"
#include "backend/transport/transport.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class ShmFabric {
 public:
  static Result<std::shared_ptr<ShmFabric>> instance();
  ~ShmFabric();
  ShmFabric(const ShmFabric&) = delete;
  ShmFabric& operator=(const ShmFabric&) = delete;

  const ShmDoor& door() const { return door_; }
  ShmArena& arena() { return arena_; }
  ShmProcessPage& page() { return *reinterpret_cast<ShmProcessPage*>(page_.bytes()); }
  ShmLiveness& liveness() { return *liveness_; }
  ProgressBell& progressBell() { return bell_; }
  // kSystem where this process cannot have one: then nobody is joined to it by shared memory.
  const Result<SharedHeap*>& heap() const { return heap_; }
  // Known to processes of this user on this host only, who ask for it.
  const std::string& secret() const { return secret_; }

  // From here on processes that know the door's token and this job's are answered; "" for a job without. The first call opens the door.
  Status welcome(const std::string& jobToken);
  // The link to the process behind `door`; one that is there, or a new one. Errors of ShmLink::dial().
  Result<std::shared_ptr<const ShmLink>> linkTo(const ShmDoor& door, std::string_view jobToken, const WaitLimit& limit);
  // The same for who does not wait. A link that is there is the outcome at once, and `onDone` is not called. Only after welcome().
  std::shared_ptr<ShmLinkRequest> linkSoon(const ShmDoor& door, std::string_view jobToken, std::function<void()> onDone);
  // Whether that process has a link to this one.
  bool isLinkedHere(const RandomId& process);

  // What the fabric's thread waits for beside its own, from welcome() on. A callback must not drop the last holder of the fabric.
  const std::shared_ptr<FdWatches>& watches() const { return watches_; }
  // Those of the host in this network namespace, the calling thread's, as they were when a group of this process first asked: one that
  // comes or goes later is not noticed before all groups are gone. Errors of listInterfaces().
  Result<std::vector<InterfaceAddress>> interfaces(std::uint64_t networkNamespace);
  // Where groups with these options are dialed for links over wires: one listener for all that choose the same interfaces, from the same
  // network namespace, the calling thread's; made when there is none. Errors of listenOnInterfaces().
  Result<std::shared_ptr<LinkListener>> linkListener(std::uint64_t networkNamespace, const Options& options);

  // Memory of the arena that its group does not need any more, while peers may still write to it. `isFree` tells when nobody does; it is
  // asked again whenever a group is made or a process goes.
  struct Remains {
    std::vector<Mapping> mappings;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    std::function<bool(ShmFabric&)> isFree;
  };
  void bury(Remains remains);
  void clearRemains();
  std::size_t numRemains();

 private:
  class Bell final : public ProgressBell {
   public:
    explicit Bell(ShmProcessPage& page) : page_(page) {}
    std::uint32_t ticket() const override;
    void sleep(std::uint32_t ticket, Deadline until) override;
    void ring() override;

   private:
    ShmProcessPage& page_;
    std::atomic<int> numSleeping_{0};
  };

  ShmFabric(ShmArena arena, Mapping page, OwnLiveness liveness, ShmDoor door, std::string secret, Result<SharedHeap*> heap,
            std::shared_ptr<FdWatches> watches);
  void layOutProbe(std::uint64_t secret);
  Status open() SW_REQUIRES(listenerMutex_);
  void serve();
  bool isWelcome(const RandomId& token);
  std::shared_ptr<const ShmLink> knownLink(const ShmDoor& door);
  std::shared_ptr<const ShmLink> keep(const ShmDoor& door, const std::shared_ptr<const ShmLink>& made);
  void wake() const;
  std::vector<std::shared_ptr<LinkListener>> linkListeners();
  bool serveLinks();

  const OwnerProcess owner_;
  ShmArena arena_;
  Mapping page_;
  const OwnLiveness liveness_;
  Bell bell_;
  const ShmDoor door_;
  const std::string secret_;
  const Result<SharedHeap*> heap_;
  std::vector<std::byte> probe_;  // what other processes try their reads on
  std::uint64_t probeSecret_ = 0;

  Mutex mutex_;
  std::set<std::string> jobTokens_ SW_GUARDED_BY(mutex_);
  std::map<std::string, std::weak_ptr<const ShmLink>> links_ SW_GUARDED_BY(mutex_);  // by the door's socket name
  std::vector<Remains> remains_ SW_GUARDED_BY(mutex_);

  Mutex listenerMutex_;
  std::optional<ShmListener> listener_ SW_GUARDED_BY(listenerMutex_);
  ShmDialer dialer_;
  const std::shared_ptr<FdWatches> watches_;
  Mutex interfacesMutex_;
  std::map<std::uint64_t, std::vector<InterfaceAddress>> interfaces_ SW_GUARDED_BY(interfacesMutex_);  // by network namespace
  Mutex linkListenersMutex_;
  std::map<std::string, std::weak_ptr<LinkListener>> linkListeners_ SW_GUARDED_BY(linkListenersMutex_);  // by what chose their interfaces
  Fd wakeFd_;  // an eventfd: the thread is to look what it is asked for, or to end
  std::atomic<bool> mustStop_{false};
  std::thread thread_;
};

}  // namespace shardwire::internal
