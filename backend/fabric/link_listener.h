// The place where a process is dialed for links, by any rank of any group: one port per interface for all groups of the
// process (ListeningPorts), and behind the port one endpoint (LinkEndpoint) for each rank of each group. A caller names
// the endpoint in its hello, and is accepted once the caller has proved the key of the group:
//
//   silent ──hello──► known ──proof──► at an open endpoint: checked, accepted; the link waits for the rank
//                                      at an endpoint that is not open yet: waits, as long as the endpoint exists
//
// A rank adds its endpoint before publishing the addresses, so a caller that names an unknown endpoint comes too late,
// or has read a stale store. The rank opens the endpoint once the rank knows which callers to accept. Foreign processes
// delay no rank: only few callers may be silent or unproved at a time, each for a few seconds.
//
// The fabric's thread goes on with all callers, whatever the groups do. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/mutex.h"
#include "backend/base/owner_process.h"
#include "backend/base/random_id.h"
#include "backend/fabric/fd_watches.h"
#include "backend/fabric/link.h"
#include "backend/fabric/listening_ports.h"
#include "backend/fabric/proof.h"
#include "backend/fabric/rejections.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The callers that a rank's endpoint accepts, and the keys that these callers must prove.
struct LinkGuests {
  Rank self = 0;
  int worldSize = 1;
  LinkKey key{};                     // of the group's token and the job's
  LinkKey keyOfUser{};               // of the group's token and the secret that processes of one user on one host share
  std::vector<bool> sharesSecret{};  // by rank: whether the rank must prove keyOfUser; empty: no rank must

  // `from`: as claimed by the caller, any value.
  const LinkKey& keyOf(Rank from) const;
};

struct AcceptedLink {
  Link link;
  LinkHello hello;
};

class LinkEndpoint;

class LinkListener : public std::enable_shared_from_this<LinkListener> {
 public:
  // The longest time for a caller to prove itself. Ranks need a round trip; the rest is for hosts with more work than
  // cores.
  static constexpr Duration kProveWithin = std::chrono::seconds(10);

  // `watches` serves the listener. kSystem when this process has no descriptor left.
  static Result<std::shared_ptr<LinkListener>> create(ListeningPorts ports, std::shared_ptr<FdWatches> watches,
                                                      Duration proveWithin = kProveWithin);
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;
  ~LinkListener();

  const std::vector<NetAddress>& addresses() const { return ports_.addresses; }
  // Adds the endpoint named `id` (makeEndpointId), for a rank of a group of `worldSize`. `onCall` is called, under the
  // listener's lock, when the endpoint has a result for take(); `onCall` must not wait. kInternal when the name is in
  // use already.
  Result<std::unique_ptr<LinkEndpoint>> addEndpoint(const RandomId& id, int worldSize, std::function<void()> onCall);

  // Goes on with all callers, without waiting. The watching thread calls serve(), and repeats the call every 100 ms as
  // long as isPressed(): some callers have only a limited time.
  void serve();
  bool isPressed();

 private:
  friend class LinkEndpoint;
  struct Caller;  // a connection that has not finished the handshake
  struct EndpointState;

  LinkListener(ListeningPorts ports, Fd ready, Duration proveWithin);
  Status letIn() SW_REQUIRES(mutex_);
  Status setListening(bool on) SW_REQUIRES(mutex_);
  std::size_t numSilent() const SW_REQUIRES(mutex_);
  void advance(Caller& caller) SW_REQUIRES(mutex_);
  void takeHello(Caller& caller, const LinkMessage& message) SW_REQUIRES(mutex_);
  bool makeRoomAt(const EndpointState& endpoint) SW_REQUIRES(mutex_);
  void welcome(Caller& caller) SW_REQUIRES(mutex_);
  void forget(Caller& caller) SW_REQUIRES(mutex_);
  void reject(Caller& caller, const Status& why, bool notifies) SW_REQUIRES(mutex_);
  void clearGone() SW_REQUIRES(mutex_);
  void open(const RandomId& id, LinkGuests guests);
  Result<std::vector<AcceptedLink>> take(const RandomId& id);
  void remove(const RandomId& id);

  const OwnerProcess owner_;
  const ListeningPorts ports_;
  const Fd ready_;  // epoll set of the ports and of all callers
  const Duration proveWithin_;
  Mutex mutex_;
  bool isListening_ SW_GUARDED_BY(mutex_) = true;   // the ports are watched
  std::size_t lastPort_ SW_GUARDED_BY(mutex_) = 0;  // the port asked last for a caller
  Rejections rejections_ SW_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Caller>> callers_ SW_GUARDED_BY(mutex_);  // oldest first
  std::map<RandomId, std::unique_ptr<EndpointState>> endpoints_ SW_GUARDED_BY(mutex_);
  std::unique_ptr<FdWatch> watch_;  // last member: destroyed first
};

// A rank's endpoint at a listener, held by the rank's group. The listener is destroyed with its last endpoint. One
// thread.
class LinkEndpoint {
 public:
  LinkEndpoint(const LinkEndpoint&) = delete;
  LinkEndpoint& operator=(const LinkEndpoint&) = delete;
  // Hangs up on callers that were not accepted.
  ~LinkEndpoint();

  const std::vector<NetAddress>& addresses() const { return listener_->addresses(); }
  // From here on callers are accepted, the waiting callers first.
  void open(LinkGuests guests) { listener_->open(id_, std::move(guests)); }
  // The callers accepted since the last call. kSystem, once, when the listener could not accept a connection, whichever
  // endpoint was meant.
  Result<std::vector<AcceptedLink>> take() { return listener_->take(id_); }

 private:
  friend class LinkListener;
  LinkEndpoint(std::shared_ptr<LinkListener> listener, const RandomId& id) : listener_(std::move(listener)), id_(id) {}

  const std::shared_ptr<LinkListener> listener_;
  const RandomId id_;
};

}  // namespace shardwire::internal
