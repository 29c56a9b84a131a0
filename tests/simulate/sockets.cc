// A cable joins a dialer and a listening process. make() gives the dialer one descriptor of a pair. The simulation
// keeps the other descriptor, and writes the bytes there when the bytes arrive; so epoll and recv are the kernel's own.
// connect() plans the arrival at the host. A dead process, or a process without a listener, refuses. A dead host never
// answers. Any other host accepts, even if the process is stopped. After each arrival notify() does the work of the
// fabric's thread: the function calls the listener, and the watches of links that are under way.
#include "tests/simulate/sockets.h"

#include <errno.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace shardwire::simulate {

using internal::LinkListener;

namespace {

constexpr std::uint16_t kPort = 4000;
// The time between two looks at callers that have a limited time.
constexpr Time kLookEvery = 100 * kMillisecond;

Sockets* theSockets = nullptr;

}  // namespace

Sockets* Sockets::current() {
  return theSockets;
}

Sockets::Sockets(World& world, std::shared_ptr<internal::Fabric> fabric, std::function<Time()> delay)
    : world_(world), fabric_(std::move(fabric)), delay_(std::move(delay)) {
  theSockets = this;
}

Sockets::~Sockets() {
  theSockets = nullptr;
  for (const auto& each : cables_) {
    for (const Side* side : {&each->dialer, &each->listener}) {
      if (side->other >= 0) {
        ::close(side->other);
      }
    }
  }
}

internal::NetAddress Sockets::addressOf(Rank process) {
  return {.ip = fmt::format("10.0.0.{}", process + 1), .scope = 0, .port = kPort, .interface = "simulated"};
}

std::shared_ptr<LinkListener> Sockets::listenerOf(Process& process) {
  Host& host = hosts_[process.rank()];
  if (auto known = host.listener.lock()) {
    return known;
  }
  host.process = &process;
  internal::ListeningPorts ports;
  host.port = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ports.sockets.emplace_back(host.port);
  ports.addresses = {addressOf(process.rank())};
  auto watches = internal::FdWatches::create();  // never served: serve() calls the listener
  SW_CHECK(watches.isOk());
  auto made = LinkListener::create(std::move(ports), std::move(*watches));
  SW_CHECK(made.isOk());
  host.listener = *made;
  return std::move(*made);
}

Sockets::Host* Sockets::hostOf(const Process* process) {
  const auto found = std::ranges::find_if(hosts_, [&](const auto& each) { return each.second.process == process; });
  return process == nullptr || found == hosts_.end() ? nullptr : &found->second;
}

// ---- arrivals

// In one direction the bytes keep their order.
Time Sockets::arrivalOf(Side& from) {
  const Time now = from.process == nullptr ? world_.now() : std::max(from.process->time(), world_.now());
  return from.lastArrival = std::max(from.lastArrival, now + delay_());
}

void Sockets::deliver(Side& to, const std::string& bytes, bool isEnd) {
  to.arrived += bytes;
  to.seesEnd |= isEnd;
  if (to.other >= 0 && to.fd >= 0) {
    SW_CHECK(::write(to.other, to.arrived.data(), to.arrived.size()) == std::ssize(to.arrived));
    to.arrived.clear();
    if (isEnd) {
      ::shutdown(to.other, SHUT_WR);
    }
  }
  notify(to);
}

void Sockets::notify(const Side& side) {
  if (Host* const host = hostOf(side.process)) {
    serve(*host);
  }
  fabric_->watches()->serve();
}

void Sockets::serve(Host& host) {
  if (std::exchange(host.isServing, true)) {
    return;
  }
  host.process->act([this, &host] {
    host.isServing = false;
    const auto listener = host.listener.lock();
    if (listener == nullptr) {
      return;
    }
    listener->serve();
    if (listener->isPressed()) {
      world_.at(world_.now() + kLookEvery, [this, &host] { serve(host); });
    }
  });
}

void Sockets::arrive(Cable& cable, Host* host) {
  if (host != nullptr && host->isSilent) {
    return;
  }
  const bool isRefused = host == nullptr || host->isDead || host->listener.expired();
  if (!isRefused) {
    cable.listener.process = host->process;
    host->backlog.push_back(&cable);
    serve(*host);
  }
  world_.at(world_.now() + delay_(), [this, &cable, isRefused] {
    cable.state = isRefused ? State::kRefused : State::kConnected;
    if (isRefused && cable.dialer.process != nullptr) {
      world_.note(world_.now(), cable.dialer.process->rank(), "sees that the connection is refused");
    }
    notify(cable.dialer);
  });
}

void Sockets::sendEnd(Cable& cable, Side& from) {
  if (std::exchange(from.hasEnded, true) || from.isSilent || cable.state == State::kNew) {
    return;
  }
  world_.at(arrivalOf(from), [this, &cable, &from] { deliver(cable.across(from), "", true); });
}

void Sockets::end(Process& process, bool isHost) {
  if (Host* const host = hostOf(&process)) {
    host->isDead = true;
    host->isSilent = isHost;
  }
  for (const auto& each : cables_) {
    for (Side* side : {&each->dialer, &each->listener}) {
      if (side->process == &process) {
        side->isSilent |= isHost;
        sendEnd(*each, *side);
      }
    }
  }
}

// ---- the system calls

Sockets::Cable* Sockets::find(int fd, Side** side) {
  const auto found = byFd_.find(fd);
  if (found == byFd_.end()) {
    return nullptr;
  }
  *side = found->second->dialer.fd == fd ? &found->second->dialer : &found->second->listener;
  return found->second;
}

void Sockets::openSide(Side& side) {
  std::array<int, 2> pair{};
  SW_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair.data()) == 0);
  side.fd = pair[0];
  side.other = pair[1];
}

bool Sockets::make(int domain, int type, int* fd) {
  if (domain != AF_INET || (type & SOCK_STREAM) == 0) {
    return false;
  }
  Cable& cable = *cables_.emplace_back(std::make_unique<Cable>());
  cable.dialer.process = Process::running();
  openSide(cable.dialer);
  byFd_[cable.dialer.fd] = &cable;
  *fd = cable.dialer.fd;
  return true;
}

bool Sockets::connect(int fd, const void* address, int* result) {
  Side* side = nullptr;
  Cable* const cable = find(fd, &side);
  if (cable == nullptr) {
    return false;
  }
  sockaddr_in to{};
  std::memcpy(&to, address, sizeof to);
  const auto host = hosts_.find(static_cast<Rank>(ntohl(to.sin_addr.s_addr) & 0xff) - 1);
  cable->state = State::kConnecting;
  world_.note(world_.now(), side->process == nullptr ? -1 : side->process->rank(), "dials process {}",
              host == hosts_.end() ? -1 : host->first);
  world_.at(arrivalOf(*side),
            [this, cable, to = host == hosts_.end() ? nullptr : &host->second] { arrive(*cable, to); });
  errno = EINPROGRESS;
  *result = -1;
  return true;
}

bool Sockets::isConnecting(int fd) const {
  const auto found = byFd_.find(fd);
  return found != byFd_.end() && found->second->state == State::kConnecting;
}

bool Sockets::error(int fd, int* error) const {
  const auto found = byFd_.find(fd);
  if (found == byFd_.end()) {
    return false;
  }
  *error = found->second->state == State::kRefused ? ECONNREFUSED : 0;
  return true;
}

bool Sockets::accept(int listener, int* fd) {
  const auto host = std::ranges::find_if(
      hosts_, [&](const auto& each) { return each.second.port == listener && !each.second.listener.expired(); });
  if (host == hosts_.end()) {
    return false;
  }
  errno = EAGAIN;
  *fd = -1;
  if (auto& backlog = host->second.backlog; !backlog.empty()) {
    Cable& cable = *backlog.front();
    backlog.pop_front();
    openSide(cable.listener);
    byFd_[cable.listener.fd] = &cable;
    *fd = cable.listener.fd;
    deliver(cable.listener, "", cable.listener.seesEnd);
  }
  return true;
}

bool Sockets::send(int fd, const void* bytes, std::size_t size, int* error) {
  Side* side = nullptr;
  Cable* const cable = find(fd, &side);
  if (cable == nullptr) {
    return false;
  }
  *error = side->seesEnd ? EPIPE : 0;
  if (*error == 0 && !side->hasEnded) {
    world_.at(arrivalOf(*side), [this, cable, side, sent = std::string(static_cast<const char*>(bytes), size)] {
      if (!side->isSilent) {
        deliver(cable->across(*side), sent, false);
      }
    });
  }
  return true;
}

void Sockets::closed(int fd) {
  Side* side = nullptr;
  if (Cable* const cable = find(fd, &side)) {
    byFd_.erase(fd);
    side->fd = -1;
    ::close(std::exchange(side->other, -1));
    sendEnd(*cable, *side);
  }
}

}  // namespace shardwire::simulate
