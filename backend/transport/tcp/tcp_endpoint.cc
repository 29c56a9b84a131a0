// Joins two ranks by tcp over a link that they have: it becomes the stream of frames, and a second socket between the same two addresses
// that of fetches. One thread at a time.
//
//   listener                                       dialer
//   setup, with the port it listens on  <------->  setup                  (over the link)
//                                       <-------   proof of the link's secret       (over the new socket)
//   proof of it                         ------->
//   verdict                             <------->  verdict                (over the link: both come to the same end)
#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <vector>

#include "backend/base/log.h"
#include "backend/base/system_error.h"
#include "backend/base/wire.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/lanes.h"
#include "backend/transport/link_message.h"
#include "backend/transport/net_socket.h"
#include "backend/transport/tcp/tcp_connection.h"
#include "backend/transport/tcp/tcp_wire.h"

namespace shardwire::internal {
namespace {

constexpr std::uint32_t kMagic = 0x50545753;  // "SWTP"
constexpr std::uint8_t kTcpVersion = 1;
constexpr std::size_t kMaxTextBytes = 1024;
constexpr std::size_t kMaxStrangers = 32;
constexpr std::string_view kDialerProof = "tcp fetches, dialer";
constexpr std::string_view kListenerProof = "tcp fetches, listener";

struct Setup {
  std::array<std::uint64_t, kNumLanes> capacities{};
  std::uint16_t port = 0;  // of the listener
  Status status;           // why there is nothing to set up
};

std::string encodeStatus(ByteWriter writer, const Status& status) {
  writer.u8(static_cast<std::uint8_t>(status.code()));
  writer.text(std::string_view(status.message()).substr(0, kMaxTextBytes));
  return writer.bytes();
}

Status readStatus(ByteReader& reader) {
  const auto code = static_cast<StatusCode>(reader.u8());
  std::string text = reader.text(kMaxTextBytes);
  if (code > StatusCode::kInternal) {
    reader.fail();
  }
  return code == StatusCode::kOk ? Status::ok() : Status{code, std::move(text)};
}

std::string encodeSetup(const Setup& setup) {
  ByteWriter writer;
  writer.u32(kMagic);
  writer.u8(kTcpVersion);
  for (const std::uint64_t capacity : setup.capacities) {
    writer.u64(capacity);
  }
  writer.u32(setup.port);
  return encodeStatus(std::move(writer), setup.status);
}

Result<Setup> decodeSetup(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.u32() != kMagic) {
    return Status{StatusCode::kMismatch, "it does not speak shardwire's tcp protocol"};
  }
  if (const int version = reader.u8(); version != kTcpVersion) {
    return Status{StatusCode::kMismatch, fmt::format("it speaks version {} of the tcp protocol, this build version {}: use one release on "
                                                     "all hosts",
                                                     version, static_cast<int>(kTcpVersion))};
  }
  Setup setup;
  for (std::uint64_t& capacity : setup.capacities) {
    capacity = reader.u64();
  }
  const std::uint32_t port = reader.u32();
  setup.port = static_cast<std::uint16_t>(port);
  setup.status = readStatus(reader);
  if (!reader.isDone() || port > 0xffff) {
    return Status{StatusCode::kMismatch, "its set-up for tcp is garbled"};
  }
  return setup;
}

Status sendVerdict(Link& link, const Status& verdict, Deadline deadline) {
  return link.send(encodeStatus(ByteWriter(), verdict), deadline);
}

Status receiveVerdict(Link& link, Deadline deadline) {
  const auto bytes = link.receive(deadline);
  SW_RETURN_IF_ERROR(bytes.status());
  ByteReader reader(*bytes);
  Status theirs = readStatus(reader);
  return reader.isDone() ? theirs : Status{StatusCode::kMismatch, "its verdict on tcp is garbled"};
}

// What the other end makes of it, too.
Status exchangeVerdicts(Link& link, const Status& mine, Deadline deadline) {
  const Status told = sendVerdict(link, mine, deadline);
  SW_RETURN_IF_ERROR(mine);
  SW_RETURN_IF_ERROR(told);
  return receiveVerdict(link, deadline);
}

Status sendProof(const Fd& socket, const Digest& proof) {
  const std::string bytes = framed(asText(proof));
  const auto sent = sendSome(socket, bytes);
  SW_RETURN_IF_ERROR(sent.status());
  return *sent == bytes.size() ? Status::ok() : Status{StatusCode::kPeerFailed, "the second socket takes no bytes"};
}

Result<Fd> dialSecond(const Link& link, std::uint16_t port, Deadline deadline) {
  auto address = remoteAddress(link.socket());
  SW_RETURN_IF_ERROR(address.status());
  address->setPort(port);
  auto socket = startTcp(*address);
  SW_RETURN_IF_ERROR(socket.status());
  SW_RETURN_IF_ERROR(waitForSocket(*socket, POLLOUT, deadline, fmt::format("connecting a second socket to {}", toString(*address))));
  if (const int error = socketError(*socket); error != 0) {
    return systemError(fmt::format("connecting a second socket to {} (is a firewall between?)", toString(*address)), error);
  }
  SW_RETURN_IF_ERROR(sendProof(*socket, proveSocket(link.secret(), kDialerProof)));
  MessageReader reader(sizeof(Digest));
  while (true) {
    const auto whole = reader.readOn(*socket);
    SW_RETURN_IF_ERROR(whole.status());
    if (*whole) {
      break;
    }
    SW_RETURN_IF_ERROR(waitForSocket(*socket, POLLIN, deadline, "waiting for the second socket's proof"));
  }
  if (!sameDigest(reader.take(), proveSocket(link.secret(), kListenerProof))) {
    return Status{StatusCode::kMismatch, fmt::format("{} is not who the link leads to", toString(*address))};
  }
  return socket;
}

// The peer's second socket, among strangers that may find the port before it does.
class SecondListener {
 public:
  static Result<SecondListener> create(const Link& link) {
    auto address = localAddress(link.socket());
    SW_RETURN_IF_ERROR(address.status());
    address->setPort(0);
    auto socket = listenTcp(*address, 16);
    SW_RETURN_IF_ERROR(socket.status());
    const auto bound = localAddress(*socket);
    SW_RETURN_IF_ERROR(bound.status());
    return SecondListener(std::move(*socket), bound->port());
  }
  std::uint16_t port() const { return port_; }

  Result<Fd> accept(Link& link, Deadline deadline) {
    while (true) {
      SW_RETURN_IF_ERROR(wait(link, deadline));
      auto socket = acceptTcp(socket_);
      SW_RETURN_IF_ERROR(socket.status());
      if (socket->isOpen()) {
        if (callers_.size() == kMaxStrangers) {
          callers_.erase(callers_.begin());
        }
        callers_.push_back({std::move(*socket), MessageReader(sizeof(Digest))});
      }
      for (std::size_t i = 0; i < callers_.size();) {
        const auto whole = callers_[i].reader.readOn(callers_[i].socket);
        if (whole.isOk() && !*whole) {
          ++i;
          continue;
        }
        if (whole.isOk() && sameDigest(callers_[i].reader.take(), proveSocket(link.secret(), kDialerProof))) {
          SW_RETURN_IF_ERROR(sendProof(callers_[i].socket, proveSocket(link.secret(), kListenerProof)));
          return std::move(callers_[i].socket);
        }
        logWarn("a stranger who found port {} was turned away", port_);
        callers_.erase(callers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }

 private:
  struct Caller {
    Fd socket;
    MessageReader reader;
  };

  SecondListener(Fd socket, std::uint16_t port) : socket_(std::move(socket)), port_(port) {}

  // The link is looked at too: a dialer whose second socket is not to be says so there, and has nothing to say before it is.
  Status wait(Link& link, Deadline deadline) const {
    std::vector<pollfd> entries = {{link.socket().get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
    for (const Caller& each : callers_) {
      entries.push_back({each.socket.get(), POLLIN, 0});
    }
    const int ready = ::poll(entries.data(), entries.size(), pollTimeout(deadline));
    if (ready == 0 && Clock::now() >= deadline) {
      return {StatusCode::kTimeout, "waiting for the peer's second socket: it did not come in time"};
    }
    if (ready <= 0 || entries[0].revents == 0) {
      return Status::ok();
    }
    const Status verdict = receiveVerdict(link, deadline);
    return {StatusCode::kPeerFailed, fmt::format("the peer has no second socket: {}", verdict.message())};
  }

  Fd socket_;
  std::uint16_t port_;
  std::vector<Caller> callers_;
};

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(const Self& self, Fd epoll) : self_(self), poller_(std::make_shared<TcpPoller>()) { poller_->epoll = std::move(epoll); }

  std::string address() const override {
    ByteWriter writer;
    writer.u8(kTcpVersion);
    return writer.bytes();
  }
  std::string whyNot(std::string_view peerAddress) const override {
    ByteReader reader(peerAddress);
    const int version = reader.u8();
    return version == kTcpVersion ? ""
                                  : fmt::format("the two ranks speak versions {} and {} of the tcp protocol",
                                                std::min<int>(version, kTcpVersion), std::max<int>(version, kTcpVersion));
  }
  Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress, const std::string& who,
                                              Deadline deadline) override;
  std::unique_ptr<Wire> takeWire() override { return std::make_unique<TcpWire>(poller_); }

 private:
  Result<Fd> makeSecond(Link& link, bool isDialer, Deadline deadline);

  const Self self_;
  std::shared_ptr<TcpPoller> poller_;
};

Result<Fd> TcpEndpoint::makeSecond(Link& link, bool isDialer, Deadline deadline) {
  Setup mine{laneCapacities(*self_.options), 0, Status::ok()};
  auto listener =
      isDialer ? Result<SecondListener>(Status{StatusCode::kInternal, "the dialer does not listen"}) : SecondListener::create(link);
  if (listener.isOk()) {
    mine.port = listener->port();
  } else if (!isDialer) {
    mine.status = listener.status();
  }
  SW_RETURN_IF_ERROR(link.send(encodeSetup(mine), deadline));
  SW_RETURN_IF_ERROR(mine.status);
  const auto bytes = link.receive(deadline);
  SW_RETURN_IF_ERROR(bytes.status());
  const auto theirs = decodeSetup(*bytes);
  SW_RETURN_IF_ERROR(theirs.status());
  SW_RETURN_IF_ERROR(theirs->status);
  if (theirs->capacities != mine.capacities) {
    return Status{StatusCode::kMismatch,
                  "the two ranks have other lane lengths: SHARDWIRE_RING_BYTES and SHARDWIRE_INLINE_BYTES must be "
                  "equal on all ranks"};
  }
  return isDialer ? dialSecond(link, theirs->port, deadline) : listener->accept(link, deadline);
}

Result<std::unique_ptr<Connection>> TcpEndpoint::connect(Link link, Rank peer, bool isDialer, std::string_view, const std::string& who,
                                                         Deadline deadline) {
  auto second = makeSecond(link, isDialer, deadline);
  SW_RETURN_IF_ERROR(exchangeVerdicts(link, second.status(), deadline));
  TcpJoint joint;
  joint.self = self_.rank;
  joint.peer = peer;
  joint.who = who;
  joint.remote = link.remote();
  joint.capacities = laneCapacities(*self_.options);
  joint.ordinaryPath = self_.options->ordinaryPath;
  joint.frames = link.takeSocket();
  joint.fetches = std::move(*second);
  joint.poller = poller_;
  return TcpConnection::create(std::move(joint));
}

}  // namespace

Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self& self) {
  Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.isOpen()) {
    return systemError(errno == EMFILE ? "making an epoll set (raise ulimit -n)" : "making an epoll set", errno);
  }
  return std::unique_ptr<Endpoint>(std::make_unique<TcpEndpoint>(self, std::move(epoll)));
}

}  // namespace shardwire::internal
