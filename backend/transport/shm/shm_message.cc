#include "backend/transport/shm/shm_message.h"

#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {
namespace {

constexpr auto kAddressFields = [](auto& codec, auto& address) {
  idField(codec, address.owner.process);
  codec.field(address.owner.socketName, kMaxUnixNameBytes);
  idField(codec, address.owner.token);
  codec.field(address.inboxOffset);
  idField(codec, address.inboxId);
  codec.enumField(address.ordinaryPath, static_cast<int>(OrdinaryPath::kStaged) + 1);
};

constexpr auto kWelcomeFields = [](auto& codec, auto& welcome) {
  idField(codec, welcome.process);
  codec.field(welcome.arenaBytes);
  codec.field(welcome.heapBytes);
  codec.field(welcome.probeAddress);
  codec.field(welcome.probeSecret);
};

}  // namespace

std::string encodeShmAddress(const ShmAddress& address) {
  return encodeHostMessage(HostMessage::kAddress, address, kAddressFields);
}

Result<ShmAddress> decodeShmAddress(std::string_view bytes) {
  return decodeHostMessage<ShmAddress>(HostMessage::kAddress, "address", bytes, kAddressFields);
}

std::string encodeShmWelcome(const ShmWelcome& welcome) {
  return encodeHostMessage(HostMessage::kWelcome, welcome, kWelcomeFields);
}

Result<ShmWelcome> decodeShmWelcome(std::string_view bytes) {
  return decodeHostMessage<ShmWelcome>(HostMessage::kWelcome, "welcome", bytes, kWelcomeFields);
}

}  // namespace shardwire::internal
