#include "backend/transport/shm/shm_message.h"

#include <fmt/format.h>

#include "backend/base/interrupt.h"
#include "backend/base/wire.h"
#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x4d485357;  // "WSHM"
enum class Kind : std::uint8_t { kHello = 1, kRefusal = 2, kWelcome = 3, kSecretRequest = 4, kSecret = 5, kAddress = 6 };

ByteWriter startMessage(Kind kind) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u32(kShmVersion);
  writer.u8(static_cast<std::uint8_t>(kind));
  return writer;
}

Status garbled(const char* what) {
  return {StatusCode::kMismatch, fmt::format("a garbled {} message from another process of this host", what)};
}

// Checks the common part; the reader stands behind it. A refusal comes back as its error.
Status checkStart(ByteReader& reader, Kind wanted, const char* what) {
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  const auto kind = static_cast<Kind>(reader.u8());
  if (!reader.ok() || magic != kMagic) {
    return garbled(what);
  }
  if (version != kShmVersion) {
    return {StatusCode::kUnsupported, fmt::format("the other side speaks version {} of the shm handshake, this rank version {}: all ranks "
                                                  "must run the same release of shardwire",
                                                  version, kShmVersion)};
  }
  if (kind == Kind::kRefusal) {
    const auto code = static_cast<StatusCode>(reader.u8());
    const std::string text = reader.text(kMaxShmTextBytes);
    const bool known = code > StatusCode::kOk && code <= StatusCode::kInternal;
    return reader.isDone() && known ? Status{code, text} : garbled("refusal");
  }
  return kind == wanted ? Status::ok() : garbled(what);
}

}  // namespace

std::string encodeShmAddress(const ShmAddress& address) {
  ByteWriter writer = startMessage(Kind::kAddress);
  writeId(writer, address.door.process);
  writer.text(address.door.socketName);
  writeId(writer, address.door.token);
  writer.u64(address.inboxOffset);
  writeId(writer, address.inboxId);
  writer.u8(static_cast<std::uint8_t>(address.ordinaryPath));
  return writer.bytes();
}

Result<ShmAddress> decodeShmAddress(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kAddress, "address"));
  ShmAddress address;
  address.door.process = readId(reader);
  address.door.socketName = reader.text(kMaxUnixNameBytes);
  address.door.token = readId(reader);
  address.inboxOffset = reader.u64();
  address.inboxId = readId(reader);
  const std::uint8_t path = reader.u8();
  if (!reader.isDone() || path > static_cast<std::uint8_t>(OrdinaryPath::kStaged)) {
    return garbled("address");
  }
  address.ordinaryPath = static_cast<OrdinaryPath>(path);
  return address;
}

std::string encodeShmHello(const ShmHello& hello) {
  ByteWriter writer = startMessage(Kind::kHello);
  writeId(writer, hello.process);
  writeId(writer, hello.token);
  return writer.bytes();
}

Result<ShmHello> decodeShmHello(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kHello, "hello"));
  ShmHello hello;
  hello.process = readId(reader);
  hello.token = readId(reader);
  return reader.isDone() ? Result(hello) : garbled("hello");
}

std::string encodeShmWelcome(const ShmWelcome& welcome) {
  ByteWriter writer = startMessage(Kind::kWelcome);
  writeId(writer, welcome.process);
  writer.u64(welcome.arenaBytes);
  writer.u64(welcome.heapBytes);
  writer.u64(welcome.probeAddress);
  writer.u64(welcome.probeSecret);
  return writer.bytes();
}

Result<ShmWelcome> decodeShmWelcome(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kWelcome, "welcome"));
  ShmWelcome welcome;
  welcome.process = readId(reader);
  welcome.arenaBytes = reader.u64();
  welcome.heapBytes = reader.u64();
  welcome.probeAddress = reader.u64();
  welcome.probeSecret = reader.u64();
  return reader.isDone() ? Result(welcome) : garbled("welcome");
}

std::string encodeShmRefusal(const Status& reason) {
  ByteWriter writer = startMessage(Kind::kRefusal);
  writer.u8(static_cast<std::uint8_t>(codeForPeers(reason.code())));
  writer.text(std::string_view(reason.message()).substr(0, kMaxShmTextBytes));
  return writer.bytes();
}

std::string encodeShmSecretRequest(const RandomId& token) {
  ByteWriter writer = startMessage(Kind::kSecretRequest);
  writeId(writer, token);
  return writer.bytes();
}

Result<RandomId> decodeShmSecretRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kSecretRequest, "request"));
  const RandomId token = readId(reader);
  return reader.isDone() ? Result(token) : garbled("request");
}

std::string encodeShmSecret(std::string_view secret) {
  ByteWriter writer = startMessage(Kind::kSecret);
  writer.text(secret);
  return writer.bytes();
}

Result<std::string> decodeShmSecret(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkStart(reader, Kind::kSecret, "secret"));
  std::string secret = reader.text(kMaxShmTextBytes);
  return reader.isDone() && !secret.empty() ? Result(std::move(secret)) : garbled("secret");
}

bool isShmSecretRequest(std::string_view bytes) {
  ByteReader reader(bytes);
  return checkStart(reader, Kind::kSecretRequest, "request").isOk();
}

}  // namespace shardwire::internal
