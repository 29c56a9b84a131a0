#include "backend/transport/shm/shm_message.h"

#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {

std::string encodeShmAddress(const ShmAddress& address) {
  ByteWriter writer = startHostMessage(HostMessage::kAddress);
  writeId(writer, address.owner.process);
  writer.text(address.owner.socketName);
  writeId(writer, address.owner.token);
  writer.u64(address.inboxOffset);
  writeId(writer, address.inboxId);
  writer.u8(static_cast<std::uint8_t>(address.ordinaryPath));
  return writer.bytes();
}

Result<ShmAddress> decodeShmAddress(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, HostMessage::kAddress, "address"));
  ShmAddress address;
  address.owner.process = readId(reader);
  address.owner.socketName = reader.text(kMaxUnixNameBytes);
  address.owner.token = readId(reader);
  address.inboxOffset = reader.u64();
  address.inboxId = readId(reader);
  const std::uint8_t path = reader.u8();
  if (!reader.isDone() || path > static_cast<std::uint8_t>(OrdinaryPath::kStaged)) {
    return garbledHostMessage("address");
  }
  address.ordinaryPath = static_cast<OrdinaryPath>(path);
  return address;
}

std::string encodeShmWelcome(const ShmWelcome& welcome) {
  ByteWriter writer = startHostMessage(HostMessage::kWelcome);
  writeId(writer, welcome.process);
  writer.u64(welcome.arenaBytes);
  writer.u64(welcome.heapBytes);
  writer.u64(welcome.probeAddress);
  writer.u64(welcome.probeSecret);
  return writer.bytes();
}

Result<ShmWelcome> decodeShmWelcome(std::string_view bytes) {
  ByteReader reader(bytes);
  SW_RETURN_IF_ERROR(checkHostMessage(reader, HostMessage::kWelcome, "welcome"));
  ShmWelcome welcome;
  welcome.process = readId(reader);
  welcome.arenaBytes = reader.u64();
  welcome.heapBytes = reader.u64();
  welcome.probeAddress = reader.u64();
  welcome.probeSecret = reader.u64();
  return reader.isDone() ? Result(welcome) : garbledHostMessage("welcome");
}

}  // namespace shardwire::internal
