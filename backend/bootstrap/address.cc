// The bytes of a published address: a magic, a version and fixed fields in order, with lengths before texts. Another
// version is an error with both versions in its text, since only ranks of one release can be joined. Decoding trusts no
// byte, since any process with access to the store may have written the entry: lengths are bounded, flags are 0 or 1,
// and every byte must be used. A rank that could not start publishes its failure in the same form, so the other ranks
// report the failure instead of waiting.
#include "backend/bootstrap/address.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "backend/base/fd.h"
#include "backend/base/host_name.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x44415753;  // "SWAD"
constexpr std::size_t kMaxTextBytes = 4096;
constexpr std::size_t kMaxNameBytes = kMaxUnixNameBytes;
constexpr std::uint32_t kMaxLinks = 256;

// 0 where the kernel does not report the namespace: then the handshake finds out.
std::uint64_t userNamespace() {
  struct stat status {};
  return ::stat("/proc/thread-self/ns/user", &status) == 0 ? status.st_ino : 0;
}

constexpr auto kLinkFields = [](auto& codec, auto& link) {
  codec.field(link.ip, kMaxNameBytes);
  codec.field(link.scope);
  codec.wideField(link.port);
  codec.field(link.interface, kMaxNameBytes);
};

constexpr auto kAddressFields = [](auto& codec, auto& address) {
  statusField(codec, address.failure, kMaxTextBytes);
  codec.field(address.worldSize);
  codec.field(address.bootId, kMaxTextBytes);
  codec.field(address.networkNamespace);
  codec.field(address.kernel, kMaxTextBytes);
  codec.field(address.userNamespace);
  codec.field(address.host, kMaxTextBytes);
  codec.field(address.pid);
  codec.field(address.uid);
  idField(codec, address.process);
  codec.field(address.hasJobToken);
  codec.field(address.joinsLate);
  codec.field(address.socketName, kMaxUnixNameBytes);
  idField(codec, address.processToken);
  codec.field(address.lifeName, kMaxNameBytes);
  codec.listField(address.lifeLinks, kMaxLinks, kLinkFields);
  idField(codec, address.token);
  codec.listField(address.links, kMaxLinks, kLinkFields);
  for (auto& transport : address.transports) {
    codec.field(transport.bytes, kMaxTextBytes);
    codec.field(transport.whyNot, kMaxTextBytes);
  }
};

}  // namespace

Result<std::string> readBootId() {
  constexpr const char* kPath = "/proc/sys/kernel/random/boot_id";
  const Fd file(::open(kPath, O_RDONLY | O_CLOEXEC));
  std::array<char, 64> text{};
  const ssize_t size = file.isOpen() ? ::read(file.get(), text.data(), text.size()) : -1;
  if (size <= 0) {
    return systemError(fmt::format("reading {}, by which ranks find out whether they share a host", kPath), errno);
  }
  std::string id(text.data(), static_cast<std::size_t>(size));
  while (!id.empty() && id.back() == '\n') {
    id.pop_back();
  }
  return id;
}

Place placeOf(const RankAddress& address) {
  return {address.host, address.bootId, address.networkNamespace, address.uid, address.kernel};
}

std::string encodeAddress(const RankAddress& address) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u32(kAddressVersion);
  kAddressFields(writer, address);
  return writer.bytes();
}

Result<RankAddress> decodeAddress(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::uint32_t magic = reader.u32();
  const std::uint32_t version = reader.u32();
  if (!reader.ok() || magic != kMagic) {
    return Status{StatusCode::kMismatch, "what the store holds is no address of a shardwire rank"};
  }
  if (version != kAddressVersion) {
    return Status{
        StatusCode::kUnsupported,
        fmt::format(
            "its address has version {}, this rank knows version {}: all ranks must run the same release of shardwire",
            version, kAddressVersion)};
  }
  RankAddress address;
  kAddressFields(reader, address);
  return reader.isDone() ? Result(std::move(address))
                         : Status{StatusCode::kMismatch, "its address in the store is garbled"};
}

Result<RankAddress> makeAddress() {
  RankAddress address;
  auto bootId = readBootId();
  SW_RETURN_IF_ERROR(bootId.status());
  address.bootId = std::move(*bootId);
  address.networkNamespace = networkNamespace();
  address.userNamespace = userNamespace();
  if (address.networkNamespace != 0) {
    address.kernel = fmt::format("{} {}", address.bootId, address.networkNamespace);
  }
  address.host = hostName();
  address.pid = static_cast<std::uint32_t>(::getpid());
  address.uid = ::geteuid();
  const auto process = processId();
  SW_RETURN_IF_ERROR(process.status());
  address.process = *process;
  const auto name = makeRandomId();
  SW_RETURN_IF_ERROR(name.status());
  address.lifeName = "shardwire-life-" + toString(*name);
  const auto token = makeRandomId();
  SW_RETURN_IF_ERROR(token.status());
  address.token = *token;
  return address;
}

std::string addressKey(Rank rank) {
  return fmt::format("shardwire/{}", rank);
}

}  // namespace shardwire::internal
