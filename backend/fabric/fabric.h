// The objects that all groups of a process share: the thread that serves the groups, the descriptors watched by this
// thread, the listeners for links, the host's interfaces, the progress bell, the Unix socket that answers other
// processes of this host, and the secret given out there.
//
// One per process, made with the first group and destroyed with the last; every user holds a reference. Any thread.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/fabric/fd_watches.h"
#include "backend/fabric/host_listener.h"
#include "backend/fabric/host_message.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/link_listener.h"
#include "backend/fabric/process_bell.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The part of a transport that exists once in a process and needs the fabric's thread and Unix socket. Lives as long as
// the fabric. All functions are called on the fabric's thread.
class FabricPart {
 public:
  virtual ~FabricPart() = default;
  // The first call, before any process is welcomed, and the last.
  virtual void begin() = 0;
  virtual void end() = 0;
  // Adds the sockets for which serve() waits. True: serve() is to be called again after a millisecond, whether or not
  // anything is readable.
  virtual bool appendSockets(std::vector<pollfd>* entries) = 0;
  // Goes on without waiting.
  virtual void serve() = 0;
  // A process that was welcomed has hung up.
  virtual void guestLeft() = 0;
  // The answer to a process that showed the right token.
  virtual HostWelcome welcome() = 0;
};

class Fabric {
 public:
  static Result<std::shared_ptr<Fabric>> instance();
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  ProcessBell& progressBell() { return bell_; }
  const ProcessAddress& address() const { return address_; }
  // Known only to processes of this user on this host, which ask for the secret.
  const std::string& secret() const { return secret_; }

  // Starts the thread, unless the thread runs already. Without the thread nothing is served. kSystem.
  Status start();
  // From here on the Unix socket answers processes that know the address's token and this job's token ("" for a job
  // without a token). The first call makes the socket. kSystem when the process cannot make the socket.
  Status listen(const std::string& jobToken);
  // Whether the process was welcomed here and has not hung up.
  bool isGuest(const RandomId& process);

  // The descriptors watched by the thread for other objects. A callback must not drop the last reference to the fabric.
  const std::shared_ptr<FdWatches>& watches() const { return watches_; }
  // The interfaces of the host in this network namespace, the calling thread's, as they were when a group of this
  // process first asked. Changes are not noticed before all groups of the process are gone. Errors of listInterfaces().
  Result<std::vector<InterfaceAddress>> interfaces(std::uint64_t networkNamespace);
  // The listener where peers dial groups with these options for links: one for all groups that choose the same
  // interfaces from the same network namespace, the calling thread's; made when there is none. Errors of
  // listenOnInterfaces().
  Result<std::shared_ptr<LinkListener>> linkListener(std::uint64_t networkNamespace, const Options& options);

  // The part of the transport that shares memory; the first call makes the part by `make`. Errors of `make`.
  Result<FabricPart*> part(const std::function<Result<std::unique_ptr<FabricPart>>()>& make);
  // Makes the thread call the part's serve(). Any thread.
  void wake() const;

 private:
  Fabric(ProcessAddress address, std::string secret, std::shared_ptr<FdWatches> watches, Fd wakeFd);
  void serve();
  bool isWelcome(const RandomId& token);
  int listenerSocket();
  // Called by the thread alone. The part, or null before the part is made. begunPart() also begins the part.
  FabricPart* madePart();
  FabricPart* begunPart();
  std::vector<std::shared_ptr<LinkListener>> linkListeners();
  bool serveLinks();

  const OwnerProcess owner_;
  ProcessBell bell_;
  const ProcessAddress address_;
  const std::string secret_;
  const std::shared_ptr<FdWatches> watches_;

  Mutex tokensMutex_;
  std::set<std::string> jobTokens_ SW_GUARDED_BY(tokensMutex_);
  Mutex partMutex_;
  std::unique_ptr<FabricPart> part_ SW_GUARDED_BY(partMutex_);
  FabricPart* begun_ = nullptr;  // part_, once the thread began the part; used by the thread alone
  Mutex listenerMutex_;
  std::optional<HostListener> listener_ SW_GUARDED_BY(listenerMutex_);
  Mutex interfacesMutex_;
  std::map<std::uint64_t, std::vector<InterfaceAddress>> interfaces_
      SW_GUARDED_BY(interfacesMutex_);  // by network namespace
  Mutex linkListenersMutex_;
  // By network namespace and choice of interfaces.
  std::map<std::string, std::weak_ptr<LinkListener>> linkListeners_ SW_GUARDED_BY(linkListenersMutex_);

  const Fd wakeFd_;  // an eventfd
  std::atomic<bool> mustStop_{false};
  Mutex threadMutex_;
  std::thread thread_ SW_GUARDED_BY(threadMutex_);
};

}  // namespace shardwire::internal
