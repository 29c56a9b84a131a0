// One TCP stream between two ranks: plain, or with TLS 1.3 under a key that both ends know (an external PSK with an
// ephemeral Diffie-Hellman exchange, TLS_AES_128_GCM_SHA256). send() and receive() mean the same in both cases.
//
// One thread at a time. Nothing blocks.
#pragma once

#include <poll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "backend/base/digest.h"
#include "backend/base/fd.h"
#include "shardwire/status.h"

namespace shardwire::internal {

class Tls;

class TcpStream {
 public:
  // AES-GCM is safe for some 2^24.5 records under one key (RFC 8446, 5.5). A sender changes its key before,
  // except where the kernel encrypts, which cannot.
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 24;

  // Plain. Not open without a socket.
  TcpStream(Fd socket = {});  // NOLINT(google-explicit-constructor)
  TcpStream(TcpStream&&) noexcept;
  TcpStream& operator=(TcpStream&&) noexcept;
  ~TcpStream();

  const Fd& socket() const { return socket_; }
  bool isOpen() const { return socket_.isOpen(); }

  // The next byte in either direction belongs to a TLS handshake. One end is the client, and `key` is equal on both
  // ends. Before handshake() is done, neither send() nor receive() may be called.
  Status beginTls(bool isClient, const Digest& key, std::uint64_t recordsPerKey = kRecordsPerKey);
  // Goes on without waiting. True: done, and both ends have proved the key (the server sends a byte for this).
  // kPeerFailed: the other end closed the stream; kMismatch: the other end has another key, or speaks no TLS, or bytes
  // were changed on the way.
  Result<bool> handshake();
  // Events to wait for before the next handshake().
  short handshakeEvents() const;

  // As sendmsg() and recvmsg() without waiting: a number of bytes, or -1 and errno. EAGAIN of send(): the next send()
  // must begin with the same bytes, and have at least as many. EBADMSG: bytes of TLS were changed on the way.
  ssize_t send(std::span<const iovec> pieces);
  // Fewer bytes than the pieces have room for: the socket has no more. 0: the end of the stream.
  ssize_t receive(std::span<const iovec> pieces) { return receive(pieces, false); }
  // With TLS a stream may hold received bytes, of which epoll knows nothing. A caller that stops before receive()
  // returned too few bytes calls receiveHeld() until that returns too few. receiveHeld() leaves the socket alone, so
  // it ends, however fast the other end sends.
  bool holdsBytes() const;
  // TLS is over, and epoll may not know this, either: bytes were changed behind those that receive() returned. The next
  // receive() returns the error. Then holdsBytes(), too.
  bool holdsError() const;
  ssize_t receiveHeld(std::span<const iovec> pieces) { return receive(pieces, true); }
  // The meaning of errno after send() or receive(). kMismatch for EBADMSG; the text goes after the name of the peer.
  Status error(std::string_view what) const;

  // "", ", TLS 1.3" or ", TLS 1.3 (sent by the kernel)": for descriptions.
  const char* protection() const;

 private:
  ssize_t receive(std::span<const iovec> pieces, bool onlyHeld);

  Fd socket_;
  std::unique_ptr<Tls> tls_;  // null: plain
};

}  // namespace shardwire::internal
