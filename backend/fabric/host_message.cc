#include "backend/fabric/host_message.h"

#include <fmt/format.h>

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kHostMagic = 0x4d485357;  // "WSHM"

constexpr auto kHelloFields = [](auto& codec, auto& hello) {
  idField(codec, hello.process);
  idField(codec, hello.token);
};
constexpr auto kRequestFields = [](auto& codec, auto& token) { idField(codec, token); };
constexpr auto kSecretFields = [](auto& codec, auto& secret) { codec.field(secret, kMaxHostTextBytes); };

}  // namespace

ByteWriter startHostMessage(HostMessage kind) {
  ByteWriter writer;
  writer.u32(kHostMagic);
  writer.u32(kHostVersion);
  writer.u8(static_cast<std::uint8_t>(kind));
  return writer;
}

Status garbledHostMessage(const char* what) {
  return {StatusCode::kMismatch, fmt::format("a garbled {} message from another process of this host", what)};
}

Status checkHostMessage(ByteReader& reader, HostMessage wanted, const char* what) {
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  const auto kind = static_cast<HostMessage>(reader.u8());
  if (!reader.ok() || magic != kHostMagic) {
    return garbledHostMessage(what);
  }
  if (version != kHostVersion) {
    return {StatusCode::kUnsupported,
            fmt::format("the other side speaks version {} of the shm handshake, this rank version {}: all ranks "
                        "must run the same release of shardwire",
                        version, kHostVersion)};
  }
  if (kind == HostMessage::kRefusal) {
    const Status refusal = readStatus(reader, kMaxHostTextBytes);
    return reader.isDone() && !refusal.isOk() ? refusal : garbledHostMessage("refusal");
  }
  return kind == wanted ? Status::ok() : garbledHostMessage(what);
}

std::string encodeHostHello(const HostHello& hello) {
  return encodeHostMessage(HostMessage::kHello, hello, kHelloFields);
}

Result<HostHello> decodeHostHello(std::string_view bytes) {
  return decodeHostMessage<HostHello>(HostMessage::kHello, "hello", bytes, kHelloFields);
}

std::string encodeHostRefusal(const Status& reason) {
  ByteWriter writer = startHostMessage(HostMessage::kRefusal);
  statusField(writer, reason, kMaxHostTextBytes);
  return writer.bytes();
}

std::string encodeSecretRequest(const RandomId& token) {
  return encodeHostMessage(HostMessage::kSecretRequest, token, kRequestFields);
}

Result<RandomId> decodeSecretRequest(std::string_view bytes) {
  return decodeHostMessage<RandomId>(HostMessage::kSecretRequest, "request", bytes, kRequestFields);
}

std::string encodeSecret(std::string_view secret) {
  return encodeHostMessage(HostMessage::kSecret, secret, kSecretFields);
}

Result<std::string> decodeSecret(std::string_view bytes) {
  auto secret = decodeHostMessage<std::string>(HostMessage::kSecret, "secret", bytes, kSecretFields);
  return secret.isOk() && secret->empty() ? garbledHostMessage("secret") : std::move(secret);
}

bool isSecretRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  return checkHostMessage(reader, HostMessage::kSecretRequest, "request").isOk();
}

}  // namespace shardwire::internal
