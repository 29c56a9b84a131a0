// Where a process is dialed for links, by whatever rank of whatever group: one port per interface for all its groups (ListeningPorts), and
// one door for each rank of each group behind it. Who dials says in its hello at which door it knocks, and goes through that once it has
// proved the key of the group:
//
//   silent ──hello──► known ──proof──► at an open door: checked, let in; its link waits in the door for its rank
//                                      at a door that is not open yet: waits, as long as the door is there
//
// A rank has its door before it publishes where that is, so who knocks where no door is comes too late, or has read a stale store. The door
// opens when the rank knows who may come in. Strangers hold up nobody: few may be silent or unproved at a time, each for a few seconds.
//
// The fabric's thread goes on with all who dialed, whatever the groups do. Any thread.
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
#include "shardwire/status.h"

namespace shardwire::internal {

// Who may come through a rank's door, and the keys that they must prove.
struct LinkGuests {
  Rank self = 0;
  int worldSize = 1;
  LinkKey key{};                     // of the group's token and the job's
  LinkKey keyOfUser{};               // of the group's token and the secret that processes of one user on one host share
  std::vector<bool> sharesSecret{};  // by rank: whether it is to prove the latter; empty: nobody is

  // `from`: as the caller says, any value.
  const LinkKey& keyOf(Rank from) const;
};

struct AcceptedLink {
  Link link;
  LinkHello hello;
};

class LinkDoor;

class LinkListener : public std::enable_shared_from_this<LinkListener> {
 public:
  // How long somebody who dialed may take to prove itself. Ranks need a round trip; the rest is for hosts with more to do than cores.
  static constexpr Duration kProveWithin = std::chrono::seconds(10);

  // `watches` has it served. kSystem where this process has no descriptor left.
  static Result<std::shared_ptr<LinkListener>> create(ListeningPorts ports, std::shared_ptr<FdWatches> watches,
                                                      Duration proveWithin = kProveWithin);
  LinkListener(const LinkListener&) = delete;
  LinkListener& operator=(const LinkListener&) = delete;
  ~LinkListener();

  const std::vector<NetAddress>& addresses() const { return ports_.addresses; }
  // The door that `id` (makeDoorId) names, of a rank of so many. `onCall` is called, under the listener's lock, when the door has something
  // to take; it must not wait. Where that leads to somebody else's door, kInternal.
  Result<std::unique_ptr<LinkDoor>> addDoor(const RandomId& id, int worldSize, std::function<void()> onCall);

  // Goes on with all who dialed, without waiting. Whoever watches calls it, and does so every 100 ms as long as isPressed(): some have only
  // so long to speak.
  void serve();
  bool isPressed();

 private:
  friend class LinkDoor;
  struct Caller;  // somebody who dialed and is not through with the handshake
  struct Door;

  LinkListener(ListeningPorts ports, Fd ready, Duration proveWithin);
  Status letIn() SW_REQUIRES(mutex_);
  Status setListening(bool on) SW_REQUIRES(mutex_);
  std::size_t numSilent() const SW_REQUIRES(mutex_);
  void advance(Caller& caller) SW_REQUIRES(mutex_);
  void takeHello(Caller& caller, const LinkMessage& message) SW_REQUIRES(mutex_);
  bool makeRoomAt(const Door& door) SW_REQUIRES(mutex_);
  void welcome(Caller& caller) SW_REQUIRES(mutex_);
  void forget(Caller& caller) SW_REQUIRES(mutex_);
  void turnAway(Caller& caller, const Status& why, bool tell) SW_REQUIRES(mutex_);
  void clearGone() SW_REQUIRES(mutex_);
  void open(const RandomId& id, LinkGuests guests);
  Result<std::vector<AcceptedLink>> take(const RandomId& id);
  void remove(const RandomId& id);

  const OwnerProcess owner_;
  const ListeningPorts ports_;
  const Fd ready_;  // epoll set of the ports and of all callers
  const Duration proveWithin_;
  Mutex mutex_;
  bool isListening_ SW_GUARDED_BY(mutex_) = true;                       // the ports are looked at
  std::vector<std::unique_ptr<Caller>> callers_ SW_GUARDED_BY(mutex_);  // oldest first
  std::map<RandomId, std::unique_ptr<Door>> doors_ SW_GUARDED_BY(mutex_);
  std::unique_ptr<FdWatch> watch_;  // last: goes first
};

// A rank's door at a listener, as its group holds it. The listener goes with the last of its doors. One thread.
class LinkDoor {
 public:
  LinkDoor(const LinkDoor&) = delete;
  LinkDoor& operator=(const LinkDoor&) = delete;
  // Hangs up on those who did not get in.
  ~LinkDoor();

  const std::vector<NetAddress>& addresses() const { return listener_->addresses(); }
  // From here on callers are let in, those who wait already first.
  void open(LinkGuests guests) { listener_->open(id_, std::move(guests)); }
  // Who has come in since the last call. kSystem, once, where the listener could not let in somebody, whoever that was.
  Result<std::vector<AcceptedLink>> take() { return listener_->take(id_); }

 private:
  friend class LinkListener;
  LinkDoor(std::shared_ptr<LinkListener> listener, const RandomId& id) : listener_(std::move(listener)), id_(id) {}

  const std::shared_ptr<LinkListener> listener_;
  const RandomId id_;
};

}  // namespace shardwire::internal
