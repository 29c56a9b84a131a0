// The bytes of a connection before the other end has proved anything: the framed messages of a link, in pieces of any
// length, and the messages of the Unix socket for the host.
#include <sys/socket.h>

#include "backend/fabric/host_message.h"
#include "backend/fabric/link_message.h"
#include "backend/transport/shm/shm_message.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {

using namespace internal;

void parse(std::string_view input) {
  const std::vector<std::string> parts = splitParts(input, 8);
  std::array<int, 2> fds{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
  const Fd near(fds[0]);
  const Fd far(fds[1]);
  MessageReader reader(kMaxHandshakeBytes);
  for (const std::string& part : parts) {
    require(*sendSome(near, part) == part.size());
    for (auto whole = reader.readOn(far); whole.isOk() && *whole; whole = reader.readOn(far)) {
      const std::string bytes = reader.take();
      require(bytes.size() <= kMaxHandshakeBytes);
      const auto message = decodeLinkMessage(bytes);
      require(!message.isOk() || encodeLinkMessage(*message) == bytes);
    }
    static_cast<void>(decodeHostHello(part));
    static_cast<void>(decodeShmWelcome(part));
    static_cast<void>(decodeSecret(part));
    require(!isSecretRequest(part) || !decodeSecretRequest(part).isOk() ||
            encodeSecretRequest(*decodeSecretRequest(part)) == part);
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  for (std::uint8_t type = 1; type <= 5; ++type) {
    LinkMessage message;
    message.type = static_cast<LinkMessageType>(type);
    message.hello = {.from = 1, .to = 0, .worldSize = 2, .kind = 3};
    message.refusal = {StatusCode::kMismatch, "another job"};
    all.push_back(framed(encodeLinkMessage(message)));
  }
  for (const std::string& each : {encodeHostHello({}), encodeHostRefusal({StatusCode::kTimeout, "late"}),
                                  encodeSecretRequest({}), encodeSecret("secret"), encodeShmWelcome({})}) {
    all.push_back(each);
  }
  std::vector<std::string> inputs = {joinParts({all[0], all[2].substr(0, 9), all[2].substr(9)})};
  for (const std::string& each : all) {
    inputs.push_back(joinParts({each}));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
