// The listener for links, with callers that send the parts of the input. The first byte of a part chooses the caller,
// and how the target sends the rest of the part: unchanged, as a message with the length in front, or as a message with
// the right proof, which no search finds. Unix sockets stand in for TCP, since closed TCP connections use up the ports.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "backend/base/log.h"
#include "backend/fabric/fd_watches.h"
#include "backend/fabric/link_listener.h"
#include "backend/fabric/link_message.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr Rank kSelf = 1;
constexpr int kWorldSize = 4;
constexpr std::size_t kCallers = 3;
constexpr unsigned char kFramed = 4;
constexpr unsigned char kProved = 8;

RandomId endpointId(std::uint64_t number) {
  RandomId token{};
  token.words.fill(number);
  return makeEndpointId(token);
}

LinkKey key() {
  LinkKey key;
  key.fill(7);
  return key;
}

struct Name {
  Name() {
    const std::string text = fmt::format("shardwire-links-{}", ::getpid());
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, text.data(), text.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size = 0;
};

const Name& name() {
  static const Name name;
  return name;
}

Fd makeSocket() {
  return Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// An endpoint that is open, and one that its rank has not opened.
struct Listening {
  Listening() {
    setLogLevel(LogLevel::kError);
    ListeningPorts ports;
    ports.sockets.push_back(makeSocket());
    require(::bind(ports.sockets[0].get(), name().get(), name().size) == 0);
    require(::listen(ports.sockets[0].get(), 8) == 0);
    ports.addresses.emplace_back();
    listener = *LinkListener::create(std::move(ports), *FdWatches::create());
    open = std::move(*listener->addEndpoint(endpointId(1), kWorldSize, [] {}));
    closed = std::move(*listener->addEndpoint(endpointId(2), kWorldSize, [] {}));
    open->open({kSelf, kWorldSize, key(), {}, {}});
  }

  std::shared_ptr<LinkListener> listener;
  std::unique_ptr<LinkEndpoint> open;
  std::unique_ptr<LinkEndpoint> closed;
};

class Caller {
 public:
  void dial() {
    socket_ = makeSocket();
    require(::connect(socket_.get(), name().get(), name().size) == 0);
  }
  bool hasDialed() const { return socket_.isOpen(); }
  void send(std::string_view bytes, unsigned char how) {
    std::string message(bytes);
    if (const auto mine = decodeLinkMessage(message); mine.isOk() && mine->type == LinkMessageType::kHello) {
      hello_ = *mine;
    } else if (mine.isOk() && (how & kProved) != 0 && mine->type == LinkMessageType::kProof) {
      LinkMessage right = *mine;
      right.proof = proveLink(key(), LinkRole::kDialer, hello_.hello, hello_.challenge, challenge());
      message = encodeLinkMessage(right);
    }
    static_cast<void>(sendSome(socket_, (how & kFramed) != 0 ? framed(message) : message));
  }

 private:
  Challenge challenge() {
    MessageReader reader(kMaxHandshakeBytes);
    const auto whole = reader.readOn(socket_);
    const auto message = whole.isOk() && *whole ? decodeLinkMessage(reader.take()) : Result<LinkMessage>(LinkMessage{});
    return message.isOk() ? message->challenge : Challenge{};
  }

  Fd socket_;
  LinkMessage hello_;
};

}  // namespace

void parse(std::string_view input) {
  static Listening listening;
  {
    std::array<Caller, kCallers> callers;
    for (const std::string& part : splitParts(input, 8)) {
      const auto how = static_cast<unsigned char>(part.empty() ? 0 : part[0]);
      Caller& caller = callers[(how & 3) % kCallers];
      if (!caller.hasDialed()) {
        caller.dial();
      }
      listening.listener->serve();
      caller.send(std::string_view(part).substr(part.empty() ? 0 : 1), how);
      listening.listener->serve();
      const auto accepted = listening.open->take();
      for (const AcceptedLink& each : *accepted) {
        require(each.hello.to == kSelf && each.hello.worldSize == kWorldSize && each.hello.from != kSelf);
      }
    }
  }
  listening.listener->serve();
  require(listening.closed->take()->empty() && !listening.listener->isPressed());
  listening.closed.reset();  // hangs up on the callers that wait
  listening.closed = std::move(*listening.listener->addEndpoint(endpointId(2), kWorldSize, [] {}));
}

std::vector<std::string> seeds() {
  const auto part = [](unsigned char how, const LinkMessage& message) {
    return static_cast<char>(how | kFramed | kProved) + encodeLinkMessage(message);
  };
  LinkMessage hello{.type = LinkMessageType::kHello};
  hello.hello = {.from = 3, .to = kSelf, .worldSize = kWorldSize, .kind = 3, .endpoint = endpointId(1)};
  LinkMessage early = hello;
  early.hello.endpoint = endpointId(2);
  LinkMessage foreign = hello;
  foreign.hello.endpoint = endpointId(3);
  const LinkMessage proof{.type = LinkMessageType::kProof};
  const std::string whole = framed(encodeLinkMessage(hello));
  return {joinParts({part(0, hello), part(0, proof)}),
          joinParts({part(0, hello), part(1, hello), part(1, proof), part(0, proof)}),
          joinParts({part(0, early), part(0, proof), part(1, foreign), part(2, proof)}),
          joinParts({'\0' + whole.substr(0, 20), '\0' + whole.substr(20), part(0, proof), part(0, proof)}),
          joinParts({static_cast<char>(kFramed) + encodeLinkMessage(hello),
                     static_cast<char>(kFramed) + encodeLinkMessage(proof)})};
}

}  // namespace shardwire::fuzz
