// The bytes of the handshake of a link. Each message is framed by its length and has a magic, the protocol's version, a
// type and the fields of the type. Decoding checks every length and the end of the message, since foreign processes may
// have sent the message. MessageReader collects one message from a non-blocking socket, however the bytes are cut on
// their way, and never holds more bytes than the limit set by its user.
#include "backend/fabric/link_message.h"

#include <errno.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>

#include "backend/base/system_error.h"
#include "backend/base/wire.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x4b4c5753;  // "SWLK"
constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kMaxRefusalBytes = 512;

void bytesField(ByteWriter& writer, const std::array<std::uint8_t, 32>& bytes) {
  writer.text(asText(bytes));
}
void bytesField(ByteReader& reader, std::array<std::uint8_t, 32>& bytes) {
  const std::string text = reader.text(bytes.size());
  if (text.size() == bytes.size()) {
    std::copy(text.begin(), text.end(), bytes.begin());
  } else {
    reader.fail();
  }
}

// False: there is no such message.
constexpr auto kMessageFields = [](auto& codec, auto& message) {
  switch (message.type) {
    case LinkMessageType::kHello:
      codec.field(message.hello.from);
      codec.field(message.hello.to);
      codec.field(message.hello.worldSize);
      codec.field(message.hello.kind);
      idField(codec, message.hello.endpoint);
      bytesField(codec, message.challenge);
      return true;
    case LinkMessageType::kChallenge:
      bytesField(codec, message.challenge);
      return true;
    case LinkMessageType::kProof:
    case LinkMessageType::kWelcome:
      bytesField(codec, message.proof);
      return true;
    case LinkMessageType::kRefusal:
      statusField(codec, message.refusal, kMaxRefusalBytes);
      return !message.refusal.isOk();
  }
  return false;
};

}  // namespace

std::string encodeLinkMessage(const LinkMessage& message) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u8(kLinkVersion);
  writer.u8(static_cast<std::uint8_t>(message.type));
  kMessageFields(writer, message);
  return writer.bytes();
}

Result<LinkMessage> decodeLinkMessage(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic) {
    return Status{StatusCode::kMismatch, "does not speak shardwire's link protocol"};
  }
  if (const int version = reader.u8(); version != kLinkVersion) {
    return Status{
        StatusCode::kMismatch,
        fmt::format("speaks version {} of the link protocol, this build version {}: use one release on all hosts",
                    version, static_cast<int>(kLinkVersion))};
  }
  LinkMessage message;
  message.type = static_cast<LinkMessageType>(reader.u8());
  if (!kMessageFields(reader, message) || !reader.isDone()) {
    return Status{StatusCode::kMismatch, "sent a garbled message of the link protocol"};
  }
  return message;
}

Result<bool> MessageReader::readOn(const Fd& socket) {
  constexpr const char* kWhat = "receiving from a peer";
  while (true) {
    std::string& part = length_.size() < kLengthBytes ? length_ : bytes_;
    const std::size_t missing = (&part == &length_ ? kLengthBytes : wanted_) - part.size();
    if (missing == 0) {
      return true;
    }
    const std::size_t had = part.size();
    // Memory grows with the arriving bytes, not with the length announced by an unknown sender.
    part.resize(had + std::min<std::size_t>(missing, 64 << 10));
    const ssize_t size = ::recv(socket.get(), part.data() + had, part.size() - had, 0);
    const int error = errno;
    part.resize(had + static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    if (size == 0) {
      return Status{StatusCode::kPeerFailed, fmt::format("{}: the other end closed the connection", kWhat)};
    }
    if (size < 0 && error == EAGAIN) {
      return false;
    }
    if (size < 0 && error != EINTR) {
      return peerError(kWhat, error);
    }
    if (&part == &length_ && length_.size() == kLengthBytes) {
      wanted_ = ByteReader(length_).u32();
      if (wanted_ > maxBytes_) {
        return Status{StatusCode::kMismatch,
                      fmt::format("{}: a message of {} bytes, where {} are the most", kWhat, wanted_, maxBytes_)};
      }
    }
  }
}

std::string MessageReader::take() {
  length_.clear();
  wanted_ = 0;
  return std::exchange(bytes_, {});
}

std::string framed(std::string_view message) {
  ByteWriter writer;
  writer.text(message);
  return writer.bytes();
}

Status sendAtOnce(const Fd& socket, std::string_view message) {
  const std::string bytes = framed(message);
  const auto sent = sendSome(socket, bytes);
  SW_RETURN_IF_ERROR(sent.status());
  return *sent == bytes.size() ? Status::ok() : Status{StatusCode::kPeerFailed, "takes no bytes"};
}

Result<std::size_t> sendSome(const Fd& socket, std::string_view bytes) {
  std::size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t size = ::send(socket.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (size >= 0) {
      sent += static_cast<std::size_t>(size);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return peerError("sending to a peer", errno);
    }
  }
  return sent;
}

Status peerError(std::string_view what, int error) {
  if (error == EPIPE || error == ECONNRESET) {
    return {StatusCode::kPeerFailed,
            fmt::format("{}: the other end closed the connection ({})", what, errnoText(error))};
  }
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH || error == ENETDOWN || error == EHOSTDOWN) {
    return {StatusCode::kPeerFailed,
            fmt::format("{}: the other end does not answer any more: {}", what, errnoText(error))};
  }
  return systemError(what, error);
}

}  // namespace shardwire::internal
