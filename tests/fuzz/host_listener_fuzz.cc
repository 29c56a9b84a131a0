// The listener for processes of this host, with one connection that sends the parts of the input as messages.
#include <fmt/format.h>
#include <unistd.h>

#include "backend/base/log.h"
#include "backend/fabric/host_listener.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

const std::string& socketName() {
  static const std::string name = fmt::format("shardwire-fuzz-{}", ::getpid());
  return name;
}

HostListener makeListener() {
  setLogLevel(LogLevel::kError);
  const auto isToken = [](const RandomId& token) { return token == RandomId{}; };
  return std::move(*HostListener::create(socketName(), {isToken, isToken,
                                                        [] {
                                                          return Result<HostWelcome>(HostWelcome{"welcome", {}});
                                                        },
                                                        "secret"}));
}

}  // namespace

void parse(std::string_view input) {
  static HostListener listener = makeListener();
  {
    const auto socket = tryDialUnix(socketName());
    require(socket.isOk() && socket->isOpen());
    static_cast<void>(listener.serve());
    for (const std::string& part : splitParts(input, 4)) {
      if (part.empty() || !sendUnix(*socket, part, {}, Clock::now()).isOk()) {
        break;
      }
      static_cast<void>(listener.serve());
    }
  }
  static_cast<void>(listener.serve());
  require(!listener.isPressed());
}

std::vector<std::string> seeds() {
  const std::string hello = encodeHostHello({});
  return {joinParts({hello}), joinParts({hello, hello}), joinParts({encodeSecretRequest({})}),
          joinParts({encodeHostRefusal({StatusCode::kTimeout, "late"})})};
}

}  // namespace shardwire::fuzz
