// The messages of a peer during the set-up of a tcp connection: the set-up and the verdict, read by the end that dials,
// or by the end that listens. The first byte of a part says how the target sends the rest of the part: unchanged, as a
// message with the length in front, or as a set-up with the right checksum. No search connects to another process of
// this machine.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "backend/base/crc32c.h"
#include "backend/base/wire.h"
#include "backend/transport/lanes.h"
#include "backend/transport/tcp/tcp_joining.h"
#include "tests/backend/transport/tcp/tcp_pair.h"
#include "tests/fuzz/target.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr unsigned char kFramed = 1;
constexpr unsigned char kRepaired = 2;
constexpr unsigned char kDials = 1;
constexpr unsigned char kMustEncrypt = 2;

// Both ends of a stream. The dialing end needs no TCP: the second socket fails, whatever the peer says.
std::pair<Fd, Fd> makeUnixPair() {
  std::array<int, 2> fds{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

Fd copyOf(const Fd& socket) {
  return Fd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
}

void drain(const Fd& socket) {
  std::array<char, 4096> bytes;
  while (::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
}

// The listening end asks for the stream's address, so the stream is TCP. Making a TCP stream takes a hundred times as
// long as reading an input, so all inputs share one stream.
std::pair<Fd, Fd> shareTcpPair() {
  static const std::pair<Fd, Fd> shared = testing::makeTcpPair();
  drain(shared.first);
  drain(shared.second);
  return {copyOf(shared.first), copyOf(shared.second)};
}

std::pair<Fd, Fd> makePair(unsigned char head) {
  return (head & kDials) != 0 ? makeUnixPair() : shareTcpPair();
}

std::string repaired(std::string message, unsigned char how) {
  if ((how & kRepaired) != 0 && message.size() >= sizeof(std::uint32_t)) {
    const std::size_t end = message.size() - sizeof(std::uint32_t);
    const std::uint32_t sum = crc32c(message.data(), end);
    std::memcpy(message.data() + end, &sum, sizeof sum);
  }
  return message;
}

TcpJoint jointOf(unsigned char head) {
  TcpJoint joint;
  joint.self = 1;
  joint.peer = 0;
  joint.who = "rank 0";
  joint.capacities = laneCapacities(Options{});
  joint.tls = (head & kMustEncrypt) != 0 ? TcpTls::kOn : TcpTls::kOff;
  joint.poller = std::make_shared<TcpPoller>();
  return joint;
}

// The first message of an end with these options.
std::string setupOf(unsigned char head) {
  auto [near, far] = makePair(head);
  const TcpJoining joining(Link(std::move(far), "near"), (head & kDials) != 0, jointOf(head));
  pollfd arrival{near.get(), POLLIN, 0};
  ::poll(&arrival, 1, 1000);
  MessageReader reader(2048);
  require(*reader.readOn(near));
  return reader.take();
}

}  // namespace

void parse(std::string_view input) {
  const auto head = static_cast<unsigned char>(input.empty() ? 0 : input[0]);
  auto [near, far] = makePair(head);
  pollfd arrival{far.get(), POLLIN, 0};
  TcpJoining joining(Link(std::move(far), "near"), (head & kDials) != 0, jointOf(head));
  std::optional<Joining::Outcome> outcome;
  for (const std::string& part : splitParts(input.substr(std::min<std::size_t>(input.size(), 1)), 6)) {
    if (part.empty() || outcome.has_value()) {
      break;
    }
    const auto how = static_cast<unsigned char>(part[0]);
    const std::string message = repaired(part.substr(1), how);
    static_cast<void>(sendSome(near, (how & kFramed) != 0 ? framed(message) : message));
    if (!message.empty()) {
      ::poll(&arrival, 1, 10);
    }
    outcome = joining.step();
    std::vector<pollfd> sockets;
    joining.appendSockets(&sockets);
    require(outcome.has_value() || !joining.awaited().empty());
  }
  near.reset();
  outcome = outcome.has_value() ? std::move(outcome) : joining.step();
  require(!outcome.has_value() || !outcome->isOk());  // no input has the second socket
  joining.giveUp({StatusCode::kTimeout, "the end of the input"});
}

std::vector<std::string> seeds() {
  constexpr char kAll = kFramed | kRepaired;
  const std::string agrees(5, '\0');
  const std::string refuses("\6\12\0\0\0no sockets", 15);
  std::vector<std::string> inputs;
  for (unsigned char head = 0; head < 4; ++head) {
    const std::string setup = setupOf(head ^ kDials);
    for (const std::string& verdict : {agrees, refuses}) {
      inputs.push_back(static_cast<char>(head) + joinParts({kAll + setup, static_cast<char>(kFramed) + verdict}));
    }
    inputs.push_back(static_cast<char>(head) + joinParts({kAll + setupOf(head ^ (kDials | kMustEncrypt))}));
    const std::string raw = framed(setup);
    inputs.push_back(static_cast<char>(head) + joinParts({'\0' + raw.substr(0, 11), '\0' + raw.substr(11)}));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
