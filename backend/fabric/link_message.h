// The bytes of a link: messages framed by their length, and the five of the handshake. Pure, but for the reader, which takes what the
// socket has. One thread at a time.
//
//   message    length u32 | bytes
//   handshake  magic u32 "SWLK" | version u8 | type u8 | fields      (little-endian; a challenge or proof: length u32 = 32 | bytes)
//
//   dialer                                   listener
//   hello      ranks, world size, kind,
//              door, its challenge  ------->  turns away who knocks where no door is
//                                   <-------  challenge
//   proof                           ------->  turns away who cannot prove the token
//                                   <-------  welcome with its own proof, or a refusal with its reason
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
// kMismatch for what is none, or of another version; the text goes after "it ".
Result<LinkMessage> decodeLinkMessage(std::string_view bytes);

// Reads one message and not a byte of the next, as it comes.
class MessageReader {
 public:
  explicit MessageReader(std::size_t maxBytes) : maxBytes_(maxBytes) {}
  // True once the message is whole; take() it then. False: more is to come. Errors: kPeerFailed, kMismatch for a length above the most.
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
// Sends as much as goes without waiting; how much that was. kPeerFailed when the other end is gone.
Result<std::size_t> sendSome(const Fd& socket, std::string_view bytes);
// What an errno of a socket with a peer means.
Status peerError(std::string_view what, int error);

}  // namespace shardwire::internal
