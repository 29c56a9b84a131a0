#include <fmt/format.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "backend/base/wire.h"
#include "backend/fabric/fd_watches.h"
#include "backend/transport/endpoint.h"
#include "backend/transport/lanes.h"
#include "backend/transport/tcp/tcp_joining.h"

namespace shardwire::internal {

// The wire of all tcp connections of a rank: one epoll set. Threads: see Wire.
class TcpWire final : public Wire {
 public:
  explicit TcpWire(std::shared_ptr<TcpPoller> poller) : poller_(std::move(poller)) {}

  bool poll() override {
    if (poller_->numWatched == 0) {
      return false;  // no peer is joined yet: saves a system call
    }
    std::array<epoll_event, 32> events;
    const int numEvents = ::epoll_wait(poller_->epoll.get(), events.data(), static_cast<int>(events.size()), 0);
    bool moved = false;
    for (int i = 0; i < numEvents; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const auto* watch = static_cast<const TcpConnection::Watch*>(event.data.ptr);
      moved |= watch->connection->onReady(watch->isFetches, event.events);
    }
    return moved;
  }
  int readinessFd() const override { return poller_->epoll.get(); }

 private:
  std::shared_ptr<TcpPoller> poller_;
};

namespace {

class TcpEndpoint final : public Endpoint {
 public:
  TcpEndpoint(const Self& self, Fd epoll) : self_(self), poller_(std::make_shared<TcpPoller>()) {
    poller_->epoll = std::move(epoll);
  }

  std::string address() const override {
    ByteWriter writer;
    writer.u8(kTcpVersion);
    return writer.bytes();
  }
  std::string whyNot(std::string_view peerAddress) const override {
    ByteReader reader(peerAddress);
    const int version = reader.u8();
    return version == kTcpVersion
               ? ""
               : fmt::format("the two ranks speak versions {} and {} of the tcp protocol",
                             std::min<int>(version, kTcpVersion), std::max<int>(version, kTcpVersion));
  }
  bool mayJoinLate() const override { return true; }
  std::unique_ptr<Joining> begin(Link link, Rank peer, bool isDialer, std::string_view,
                                 const std::string& who) override {
    TcpJoint joint;
    joint.self = self_.rank;
    joint.peer = peer;
    joint.who = who;
    joint.capacities = laneCapacities(*self_.options);
    joint.hasChecksums = self_.options->tcpCrc;
    joint.tls = self_.options->tcpTls;
    joint.hasJobToken = !self_.options->jobToken.empty();
    joint.ordinaryPath = self_.options->ordinaryPath;
    joint.poller = poller_;
    return std::make_unique<TcpJoining>(std::move(link), isDialer, std::move(joint));
  }
  void refuse(Link link, const Status& why) override { refuseByTcp(std::move(link), why); }
  std::unique_ptr<Wire> takeWire() override { return std::make_unique<TcpWire>(poller_); }

 private:
  const Self self_;
  std::shared_ptr<TcpPoller> poller_;
};

}  // namespace

Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self& self) {
  auto epoll = makeEpollSet();
  SW_RETURN_IF_ERROR(epoll.status());
  return std::unique_ptr<Endpoint>(std::make_unique<TcpEndpoint>(self, std::move(*epoll)));
}

}  // namespace shardwire::internal
