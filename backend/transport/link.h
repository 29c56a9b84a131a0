// A TCP stream between two ranks on which both have proved that they know the job's token. The bootstrap makes it; a transport then agrees
// on its own set-up over it and keeps it, as its socket or as the line that hangs up when the peer's process ends.
//
// Proof (backend/transport/proof.h; link_message.h has the bytes): each side sends a random challenge, each answers with HMAC-SHA256(token,
// version, role, ranks, both challenges), compared in constant time. Neither the token nor anything that could be replayed on another link
// goes over the wire. The dialer proves itself first, so that a stranger who dials learns nothing.
// Threads: one at a time. Everything that waits takes a deadline.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "backend/transport/proof.h"
#include "shardwire/options.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class Link {
 public:
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

  explicit Link(Fd socket, std::string remote, const Digest& secret = {})
      : socket_(std::move(socket)), remote_(std::move(remote)), secret_(secret) {}

  // One message, framed by its length. kPeerFailed when the peer hung up, kTimeout (the link is of no use after it), kMismatch for a length
  // above kMaxMessageBytes.
  Status send(std::string_view message, Deadline deadline);
  Result<std::string> receive(Deadline deadline);

  const Fd& socket() const { return socket_; }
  Fd takeSocket() { return std::move(socket_); }
  // "10.0.0.2:41234": for messages.
  const std::string& remote() const { return remote_; }
  // Known to the two ends of this link and nobody else: for proveSocket().
  const Digest& secret() const { return secret_; }

 private:
  Fd socket_;  // non-blocking, TCP_NODELAY
  std::string remote_;
  Digest secret_;
};

// An address of one of this rank's interfaces, and the port where it listens.
struct NetAddress {
  std::string ip;           // "10.0.0.1", "fe80::1"
  std::uint32_t scope = 0;  // of a link-local IPv6 address, on the host that owns it
  std::uint16_t port = 0;
  std::string interface;  // "eth0"
  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

class LinkListener {
 public:
  // Listens on one port of each chosen interface (options.socketIfname; loopback only when nothing else is up, or asked for by name), and
  // on those only. kUnsupported, listing the interfaces there are, when none is left.
  static Result<LinkListener> create(const Options& options, int backlog);
  // Best first: IPv4 before IPv6, non-loopback before loopback.
  const std::vector<NetAddress>& addresses() const { return addresses_; }
  // For poll(2) beside the Unix listener: readable when accept() has something to do.
  std::span<const Fd> sockets() const { return {&ready_, 1}; }
  // Goes on with all who dialed, without waiting, and hands out those who have proved the token. Empty: nobody has, for now; or whoever
  // dialed is no rank of this group (it was turned away and logged). Strangers hold up nobody: each has a few seconds, beside the others,
  // and `deadline` at most.
  struct Accepted;
  Result<std::vector<Accepted>> accept(const RandomId& token, Rank self, int worldSize, Deadline deadline);

  LinkListener(LinkListener&&) noexcept;
  LinkListener& operator=(LinkListener&&) noexcept;
  ~LinkListener();

 private:
  struct Caller;  // somebody who dialed and is not through with the handshake
  struct Gate {
    const RandomId& token;
    Rank self;
    int worldSize;
    Deadline deadline;
  };

  LinkListener();
  Status letIn(const Gate& gate);
  // One, once the caller has proved itself.
  std::vector<Accepted> advance(Caller& caller, const Gate& gate);
  std::vector<Accepted> welcome(Caller& caller, const Digest& proof, const Gate& gate);
  void forget(const Caller& caller);
  void turnAway(Caller& caller, const Status& why, bool tell);

  std::string jobToken_;
  Fd ready_;  // epoll set of what follows
  std::vector<Fd> listeners_;
  std::vector<NetAddress> addresses_;
  std::vector<std::unique_ptr<Caller>> callers_;  // oldest first
};

struct LinkListener::Accepted {
  Link link;
  LinkHello hello;
};

// Tries the peer's addresses in turn (those in a subnet of ours first), proves the token, says hello. kUnsupported when no address answers,
// listing what each said; kMismatch when the other side is no rank of this group.
Result<Link> dialLink(std::span<const NetAddress> addresses, const RandomId& token, const LinkHello& hello, const Options& options,
                      Deadline deadline);

}  // namespace shardwire::internal
