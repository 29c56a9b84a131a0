// The bytes of a link: messages framed by their length, and the five messages of the handshake. Pure, except for the
// reader, which reads the socket. One thread at a time.
//
//   message    length u32 | bytes
//   handshake  magic u32 "SWLK" | version u8 | type u8 | fields
//              (little-endian; a challenge or proof: length u32 = 32 | bytes)
//
//   dialer                                   listener
//   hello      ranks, world size, kind,
//              endpoint, challenge  ------->  rejects a caller that names an unknown endpoint
//                                   <-------  challenge
//   proof                           ------->  rejects a caller that cannot prove the token
//                                   <-------  welcome with the listener's proof, or a refusal with the reason
#pragma once

#include <string>
#include <string_view>

#include "backend/base/fd.h"
#include "backend/fabric/proof.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::size_t kMaxHandshakeBytes = 1024;

enum class LinkMessageType : std::uint8_t { kHello = 1, kChallenge = 2, kProof = 3, kWelcome = 4, kRefusal = 5 };

struct LinkMessage {
  LinkMessageType type = LinkMessageType::kHello;
  LinkHello hello;      // of kHello
  Challenge challenge;  // of kHello and kChallenge
  Digest proof;         // of kProof and kWelcome
  Status refusal;       // of kRefusal; never ok
};

std::string encodeLinkMessage(const LinkMessage& message);
// kMismatch for bytes that are no message, or a message of another version; the text goes after "it ".
Result<LinkMessage> decodeLinkMessage(std::string_view bytes);

// Reads one message, as the bytes arrive, and not a byte of the next message.
class MessageReader {
 public:
  explicit MessageReader(std::size_t maxBytes) : maxBytes_(maxBytes) {}
  // True once the message is whole; then call take(). False: more bytes are expected. Errors: kPeerFailed, kMismatch
  // for a length above the maximum.
  Result<bool> readOn(const Fd& socket);
  std::string take();

 private:
  std::size_t maxBytes_;
  std::string length_;
  std::string bytes_;
  std::size_t wanted_ = 0;
};

// `message` with its length in front.
std::string framed(std::string_view message);
// Sends a message, with its length in front. A handshake's messages are short and fit an empty socket's buffer: bytes
// that the socket does not take at once are an error, kPeerFailed.
Status sendAtOnce(const Fd& socket, std::string_view message);
// Sends as much as possible without waiting; returns the number of bytes sent. kPeerFailed when the other end is gone.
Result<std::size_t> sendSome(const Fd& socket, std::string_view bytes);
// The meaning of an errno from a socket with a peer.
Status peerError(std::string_view what, int error);

}  // namespace shardwire::internal
