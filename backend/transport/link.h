// A TCP stream between two ranks on which both have proved that they know the job's token. The bootstrap makes it; a transport then agrees
// on its own set-up over it and keeps it, as its socket or as the line that hangs up when the peer's process ends.
//
// Proof (docs/plans.md has the bytes): each side sends a random challenge, each answers with HMAC-SHA256(token, version, role, ranks, both
// challenges), compared in constant time. Neither the token nor anything that could be replayed on another link goes over the wire.
// Threads: one at a time. Everything that waits takes a deadline.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/base/fd.h"
#include "backend/base/random_id.h"
#include "shardwire/options.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

class Link {
 public:
  static constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;

  Link(Fd socket, std::string remote) : socket_(std::move(socket)), remote_(std::move(remote)) {}

  // One message, framed by its length. kPeerFailed when the peer hung up, kTimeout, kMismatch for a length above kMaxMessageBytes.
  Status send(std::string_view message, Deadline deadline);
  Result<std::string> receive(Deadline deadline);

  const Fd& socket() const { return socket_; }
  Fd takeSocket() { return std::move(socket_); }
  // "10.0.0.2:41234": for messages.
  const std::string& remote() const { return remote_; }

 private:
  Fd socket_;  // non-blocking, TCP_NODELAY
  std::string remote_;
};

// An address of one of this rank's interfaces, and the port where it listens.
struct NetAddress {
  std::string ip;           // "10.0.0.1", "fe80::1"
  std::uint32_t scope = 0;  // of a link-local IPv6 address, on the host that owns it
  std::uint16_t port = 0;
  std::string interface;  // "eth0"
  friend bool operator==(const NetAddress&, const NetAddress&) = default;
};

// What both ends must agree on before anything else is said.
struct LinkHello {
  Rank from = 0;
  Rank to = 0;
  std::uint32_t worldSize = 0;
  std::uint8_t kind = 0;  // TransportKind that the dialer wants
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};

class LinkListener {
 public:
  // Listens on one port of each chosen interface (options.socketIfname; loopback only when nothing else is up, or asked for by name), and
  // on those only. kUnsupported, listing the interfaces there are, when none is left.
  static Result<LinkListener> create(const Options& options, int backlog);
  // Best first: IPv4 before IPv6, non-loopback before loopback.
  const std::vector<NetAddress>& addresses() const { return addresses_; }
  // For poll(2) beside the Unix listener.
  std::span<const Fd> sockets() const { return sockets_; }
  // Takes one waiting connection and its hello. No value: nobody waits, or whoever did is no rank of this group (it was turned away and
  // logged).
  struct Accepted;
  Result<std::vector<Accepted>> accept(const RandomId& token, Rank self, int worldSize, Deadline deadline);

 private:
  std::vector<Fd> sockets_;
  std::vector<NetAddress> addresses_;
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
