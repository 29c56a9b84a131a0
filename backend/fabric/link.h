// A TCP stream between two ranks on which both have proved knowledge of the job's token. The bootstrap makes the link.
// A transport then agrees on its set-up over the link and keeps the link, as the transport's socket or only to see the
// hang-up when the peer's process ends.
//
// Proof (backend/fabric/proof.h; link_message.h has the bytes): each side sends a random challenge, each answers with
// HMAC-SHA256(token, version, role, ranks, both challenges), compared in constant time. Neither the token nor anything
// that could be replayed on another link goes over the wire. The dialer proves itself first, so a foreign dialer learns
// nothing. Threads: one at a time. Every call that waits takes a limit.
#pragma once

#include <poll.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/base/wait_limit.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/listening_ports.h"
#include "backend/fabric/proof.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct LinkMessage;

class Link {
 public:
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

  explicit Link(Fd socket, std::string remote, const Digest& secret = {})
      : socket_(std::move(socket)), remote_(std::move(remote)), secret_(secret) {}

  // One message, framed by its length. kPeerFailed when the peer hung up, kTimeout (the link is unusable afterwards),
  // kMismatch for a length above kMaxMessageBytes.
  Status send(std::string_view message, const WaitLimit& limit);
  Result<std::string> receive(const WaitLimit& limit);

  const Fd& socket() const { return socket_; }
  Fd takeSocket() { return std::move(socket_); }
  // "10.0.0.2:41234": for messages.
  const std::string& remote() const { return remote_; }
  // Known only to the two ends of this link: for proveSocket().
  const Digest& secret() const { return secret_; }

 private:
  Fd socket_;  // non-blocking, TCP_NODELAY
  std::string remote_;
  Digest secret_;
};

// A peer's addresses in the order of reach from a host with these interfaces: addresses in a subnet of the host first;
// a link-local address appears once for each interface that may lead there.
std::vector<NetAddress> orderByReach(std::span<const NetAddress> addresses, const std::vector<InterfaceAddress>& mine);
// The same for a peer of another host, without this host's own addresses. Hosts may share an address (a bridge of
// docker): there this host would answer for the other host.
std::vector<NetAddress> orderByReachElsewhere(std::span<const NetAddress> addresses,
                                              const std::vector<InterfaceAddress>& mine);

// A dial to a peer, for callers that must not wait. Tries the addresses in turn, proves the key, sends the hello.
class LinkDial {
 public:
  struct Attempt;
  // `addresses`: as this host reaches them (orderByReach).
  LinkDial(std::span<const NetAddress> addresses, const LinkKey& key, const LinkHello& hello);
  LinkDial(LinkDial&&) noexcept;
  ~LinkDial();

  // Goes on without waiting. Nothing: the dial is under way. kUnsupported when no address answers, with the answer of
  // each in the text; kMismatch when the other side is no rank of this group.
  std::optional<Result<Link>> step();
  // The sockets to watch before the next step. At the time returned, step() must be called even if no socket is ready.
  Deadline appendSockets(std::vector<pollfd>* entries) const;
  // The result of step() if nothing arrives any more: kTimeout if an address has not answered yet.
  Status whyNot() const;
  // Whether a process answered and hung up, or had no room for this rank; and whether at some address no process
  // listens, or none for this group.
  bool wasHungUp() const;
  bool wasRefused() const;
  // Whether the dial is over and no host answered at any address: the peer's host or the network to it is down, or a
  // firewall drops everything.
  bool wasUnanswered() const;
  // Whether the listener had no room: the caller may dial again.
  bool wasCrowdedOut() const;

 private:
  void startNext();
  void advance(Attempt& attempt);
  Status greet(Attempt& attempt);
  Status answer(Attempt& attempt, const LinkMessage& message);
  bool isAnyProving() const;

  std::vector<Attempt> attempts_;
  LinkKey key_;
  LinkHello hello_;
  Deadline nextStart_{};
};

}  // namespace shardwire::internal
