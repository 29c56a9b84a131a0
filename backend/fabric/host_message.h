// The messages between processes of one host over a Unix socket: fixed-width fields behind a magic, a version and a
// kind. Pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "backend/base/wire.h"
#include "shardwire/status.h"

namespace shardwire::internal {

inline constexpr std::uint32_t kHostVersion = 4;
inline constexpr std::size_t kMaxHostTextBytes = 2048;

// The place where other processes of the host dial a process.
struct ProcessAddress {
  RandomId process;        // see processId()
  std::string socketName;  // abstract; belongs to one fabric
  RandomId token;          // a secret; a dialer shows knowledge of the token
};

// The first and only message of a process that asks for another process's memory.
struct HostHello {
  RandomId process;
  RandomId token;  // of the process address, with the job's token: makeHostToken()
};

// The kinds of messages. A welcome answers a hello; welcome and address belong to the transport that shares memory
// (shm_message.h).
enum class HostMessage : std::uint8_t {
  kHello = 1,
  kRefusal = 2,
  kWelcome = 3,
  kSecretRequest = 4,
  kSecret = 5,
  kAddress = 6
};

// A writer behind the part common to all messages.
ByteWriter startHostMessage(HostMessage kind);
// Checks the common part; afterwards the reader stands behind this part. A refusal is returned as the error inside.
// `what` names the message.
Status checkHostMessage(ByteReader& reader, HostMessage wanted, const char* what);
Status garbledHostMessage(const char* what);

// A message whose fields follow the common part; fields: see ops/wire/byte_codec.h.
template <typename Message, typename Fields>
std::string encodeHostMessage(HostMessage kind, const Message& message, Fields fields) {
  ByteWriter writer = startHostMessage(kind);
  fields(writer, message);
  return writer.take();
}
template <typename Message, typename Fields>
Result<Message> decodeHostMessage(HostMessage kind, const char* what, std::string_view bytes, Fields fields) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, kind, what));
  Message message;
  fields(reader, message);
  return reader.isDone() ? Result<Message>(std::move(message)) : garbledHostMessage(what);
}

std::string encodeHostHello(const HostHello& hello);
std::string encodeHostRefusal(const Status& reason);
// A request for the secret that a process gives only to processes of the same user (see HostListener). `token` as in
// HostHello.
std::string encodeSecretRequest(const RandomId& token);
std::string encodeSecret(std::string_view secret);

// kMismatch for garbage, kUnsupported for another version; a refusal is returned as the error inside.
Result<HostHello> decodeHostHello(std::string_view bytes);
Result<RandomId> decodeSecretRequest(std::string_view bytes);
Result<std::string> decodeSecret(std::string_view bytes);

bool isSecretRequest(std::string_view bytes);

}  // namespace shardwire::internal
