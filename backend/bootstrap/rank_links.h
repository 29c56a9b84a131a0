// The rank's endpoint for links: where other ranks dial this rank, and how this rank dials them. The endpoint belongs
// to a listener that all groups of the process share. Each accepted connection is a link to a peer, over which the
// peer's transport then agrees. A caller must prove the token of the group, and a secret: the secret of the user's
// ranks on this host, for which the caller asks the peer's process (HostListener), or the job's token.
//
// This file knows only the kinds of transports, and does not decide which rank dials and when. The endpoint can stay
// open after the group is made. One thread.
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

// A rank that dialed this one and proved its membership in the group.
struct Caller {
  Rank from = 0;
  TransportKind kind{};  // the transport that the caller asks for; chosen by the peer: any value
  Link link;
};

// A dial to a peer, for callers that must not wait. The dial first gets the key, for which it asks the peer's process
// if the two ranks share the process's secret, and then makes the link. The address and the options outlive the dial.
class PeerDial {
 public:
  // `reach`: the peer's addresses, as this host reaches them.
  PeerDial(const RankAddress& address, const RandomId& token, bool sharesSecret, const LinkHello& hello,
           std::vector<NetAddress> reach, const Options& options);

  // Goes on without waiting. Nothing: the dial is under way. Errors of LinkDial::step(), and of the request for the
  // secret.
  std::optional<Result<Link>> step();
  // The sockets to watch before the next step. At the time returned, step() must be called even if no socket is ready.
  Deadline appendSockets(std::vector<pollfd>* entries) const;
  // The reason for the delay; kTimeout as long as an answer may come.
  Status whyNot() const;
  // Whether a process answered and hung up; whether the listener had too many callers; whether no process listens.
  bool wasHungUp() const { return link_.has_value() && link_->wasHungUp(); }
  bool wasCrowdedOut() const { return link_.has_value() && link_->wasCrowdedOut(); }
  bool wasRefused() const { return isRefused_ || (link_.has_value() && link_->wasRefused()); }
  // Whether no host answered at any address of the peer.
  bool wasUnanswered() const { return link_.has_value() && link_->wasUnanswered(); }

 private:
  // Nothing: the process has not answered yet.
  std::optional<Result<std::string>> secret();
  Status noSecret(const Status& why) const;

  const RankAddress& address_;
  const RandomId token_;
  const bool sharesSecret_;
  const LinkHello hello_;
  std::vector<NetAddress> reach_;
  const Options& options_;
  Fd question_;  // to the peer's process, after the request; not open: the request is still to be sent
  Deadline askAgain_{};
  bool isRefused_ = false;
  std::optional<LinkDial> link_;
};

class RankLinks {
 public:
  // Listens for links of the rank that publishes `token`, at the process's listener for these options in the calling
  // thread's network namespace. Returns the listener's addresses. Callers wait until know(). Errors of
  // Fabric::linkListener().
  Result<std::vector<NetAddress>> openLinks(const Options& options, std::uint64_t networkNamespace,
                                            const RandomId& token, int worldSize, std::shared_ptr<Fabric> fabric,
                                            std::shared_ptr<RankBell> bell);
  // The same, at a listener that the caller chose. `bell` and `progress` ring for a caller, and outlive this object.
  Result<std::vector<NetAddress>> openAt(LinkListener& listener, std::vector<InterfaceAddress> interfaces,
                                         const RandomId& token, int worldSize, std::shared_ptr<Fabric> fabric,
                                         std::shared_ptr<RankBell> bell, ProgressBell& progress);
  bool hasLinks() const { return open_ != nullptr; }
  // The interfaces that may be used; only with links.
  const std::vector<InterfaceAddress>& interfaces() const { return open_->interfaces; }

  // The addresses of all ranks, this rank's included; the addresses and the options outlive this object. Before dial()
  // and callers(). `secret` is the secret that this rank's process gives to peers. From here on callers are accepted.
  void know(Rank self, const Options* options, const std::vector<RankAddress>* addresses, std::string secret);
  // Begins a link to this peer, for a transport of this kind.
  PeerDial begin(Rank peer, TransportKind kind) const;
  Result<Link> dial(Rank peer, TransportKind kind, const WaitLimit& limit) const;
  // The callers accepted by now.
  Result<std::vector<Caller>> callers();
  // Notified when callers() has a result: so this rank's bell rings, if the bell is armed.
  const std::shared_ptr<LateWakeup>& wakeup() const { return open_->wakeup; }

 private:
  const RankAddress& addressOf(Rank rank) const { return (*addresses_)[static_cast<std::size_t>(rank)]; }
  int worldSize() const { return static_cast<int>(addresses_->size()); }
  bool sharesSecret(Rank peer) const;
  std::vector<NetAddress> reachOf(Rank peer) const;

  struct Open {
    ~Open() { wakeup->end(); }
    std::vector<InterfaceAddress> interfaces;  // the interfaces that may be used
    std::shared_ptr<Fabric> fabric;
    std::shared_ptr<RankBell> bell;
    std::shared_ptr<LateWakeup> wakeup;  // rings `bell` and the fabric's progress bell
    std::unique_ptr<LinkEndpoint> endpoint;
  };
  std::unique_ptr<Open> open_;
  // Only processes of this user on this host can get this secret, by asking; used for links with them.
  std::string secret_;
  Rank self_ = 0;
  const Options* options_ = nullptr;
  const std::vector<RankAddress>* addresses_ = nullptr;
};

}  // namespace shardwire::internal
