// Where others dial this rank for links, and how it dials them: a door at the listener that all groups of its process share. What comes
// through a door is a link to a peer, over which the peer's transport then agrees. The doors know who may come in: who proves the token of
// the group, and the secret of its user's ranks on its host, for which the peer's process is asked (HostListener), or the job's.
//
// They do not know transports but for their kinds, nor who dials whom and when: ready to stay open when the group is made. One thread.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/wait_limit.h"
#include "backend/bootstrap/address.h"
#include "backend/fabric/fabric.h"
#include "backend/fabric/late_wakeup.h"
#include "backend/fabric/link.h"
#include "backend/fabric/link_listener.h"
#include "backend/fabric/rank_bell.h"
#include "backend/transport/endpoint.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// A rank that dialed this one and showed that it belongs to the group.
struct Caller {
  Rank from = 0;
  TransportKind kind{};  // that it wants to be joined by; from the peer: any value
  Link link;
};

// A link on its way to a peer, for those who must not wait: first its key, for which the peer's process is asked where the two share its
// secret, then the link. The address and the options outlive it.
class PeerDial {
 public:
  // `reach`: the peer's addresses as this host reaches them.
  PeerDial(const RankAddress& address, const RandomId& token, bool sharesSecret, const LinkHello& hello, std::vector<NetAddress> reach,
           const Options& options);

  // Goes on without waiting. Nothing: it is under way. Errors of LinkDial::step(), and what went wrong on the way to the secret.
  std::optional<Result<Link>> step();
  // What is to be looked at before the next step; or, at the time returned, nothing.
  Deadline appendSockets(std::vector<pollfd>* entries) const;
  // What keeps it; kTimeout as long as something may come.
  Status whyNot() const;
  // Whether somebody answered and hung up; whether too many dialed there; whether nobody is there.
  bool wasHungUp() const { return link_.has_value() && link_->wasHungUp(); }
  bool wasCrowdedOut() const { return link_.has_value() && link_->wasCrowdedOut(); }
  bool wasRefused() const { return isRefused_ || (link_.has_value() && link_->wasRefused()); }

 private:
  // Nothing: the process has not answered yet.
  std::optional<Result<std::string>> secret();
  void beginLink(const std::string& secret);
  Status noSecret(const Status& why) const;

  const RankAddress& address_;
  const RandomId token_;
  const bool sharesSecret_;
  const LinkHello hello_;
  std::vector<NetAddress> reach_;
  const Options& options_;
  Fd question_;  // to the peer's process, which was asked; not open: it is to be asked
  Deadline askAgain_{};
  bool isRefused_ = false;
  std::optional<LinkDial> link_;
};

class Doors {
 public:
  // For links of the rank that publishes `token`, at the listener of its process for these options in the calling thread's network
  // namespace; where that listens. Who dials waits until know(). Errors of Fabric::linkListener().
  Result<std::vector<NetAddress>> openLinks(const Options& options, std::uint64_t networkNamespace, const RandomId& token, int worldSize,
                                            std::shared_ptr<Fabric> fabric, std::shared_ptr<RankBell> bell);
  bool hasLinks() const { return open_ != nullptr; }
  const std::vector<InterfaceAddress>& interfaces() const { return open_->interfaces; }  // that may be used; only with links

  // The addresses of all ranks, this one's among them; they and the options outlive this. Before dial() and callers(). `secret` is what
  // this rank's process hands out. From here on callers may come in.
  void know(Rank self, const Options* options, const std::vector<RankAddress>* addresses, std::string secret);
  // A link to this peer, for a transport of this kind.
  PeerDial begin(Rank peer, TransportKind kind) const;
  Result<Link> dial(Rank peer, TransportKind kind, const WaitLimit& limit) const;
  // Who has come in by now.
  Result<std::vector<Caller>> callers();
  // Told when callers() has something to give: so this rank's bell rings, if it is armed.
  const std::shared_ptr<LateWakeup>& wakeup() const { return open_->wakeup; }

 private:
  const RankAddress& addressOf(Rank rank) const { return (*addresses_)[static_cast<std::size_t>(rank)]; }
  int worldSize() const { return static_cast<int>(addresses_->size()); }
  bool sharesSecret(Rank peer) const;
  std::vector<NetAddress> reachOf(Rank peer) const;

  struct Open {
    ~Open() { wakeup->end(); }
    std::vector<InterfaceAddress> interfaces;  // that may be used
    std::shared_ptr<Fabric> fabric;
    std::shared_ptr<RankBell> bell;
    std::shared_ptr<LateWakeup> wakeup;  // rings both
    std::unique_ptr<LinkDoor> door;
  };
  std::unique_ptr<Open> open_;
  std::string secret_;  // known to processes of this user on this host only, who ask for it; for links with them
  Rank self_ = 0;
  const Options* options_ = nullptr;
  const std::vector<RankAddress>* addresses_ = nullptr;
};

}  // namespace shardwire::internal
