#include "backend/fabric/host_message.h"

#include <fmt/format.h>

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kHostMagic = 0x4d485357;  // "WSHM"

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
  ByteWriter writer = startHostMessage(HostMessage::kHello);
  writeId(writer, hello.process);
  writeId(writer, hello.token);
  return writer.bytes();
}

Result<HostHello> decodeHostHello(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, HostMessage::kHello, "hello"));
  HostHello hello;
  hello.process = readId(reader);
  hello.token = readId(reader);
  return reader.isDone() ? Result(hello) : garbledHostMessage("hello");
}

std::string encodeHostRefusal(const Status& reason) {
  ByteWriter writer = startHostMessage(HostMessage::kRefusal);
  writeStatus(writer, reason, kMaxHostTextBytes);
  return writer.bytes();
}

std::string encodeSecretRequest(const RandomId& token) {
  ByteWriter writer = startHostMessage(HostMessage::kSecretRequest);
  writeId(writer, token);
  return writer.bytes();
}

Result<RandomId> decodeSecretRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, HostMessage::kSecretRequest, "request"));
  const RandomId token = readId(reader);
  return reader.isDone() ? Result(token) : garbledHostMessage("request");
}

std::string encodeSecret(std::string_view secret) {
  ByteWriter writer = startHostMessage(HostMessage::kSecret);
  writer.text(secret);
  return writer.bytes();
}

Result<std::string> decodeSecret(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, HostMessage::kSecret, "secret"));
  std::string secret = reader.text(kMaxHostTextBytes);
  return reader.isDone() && !secret.empty() ? Result(std::move(secret)) : garbledHostMessage("secret");
}

bool isSecretRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  return checkHostMessage(reader, HostMessage::kSecretRequest, "request").isOk();
}

}  // namespace shardwire::internal
