// A cable joins a dialer and a listening process. The product has one descriptor of a pair at each end. The simulation
// keeps the other descriptor, and writes the bytes there when the bytes arrive; so epoll and recv are the kernel's own.
// A dial plans the arrival at a port. A dead process, or a port that is closed, refuses. A dead host never answers. Any
// other host accepts, even if the process is stopped. After each arrival notify() does the work of the fabric's thread:
// the function calls the listener, and the watches of links that are under way. The system calls of the product are in
// socket_ends.cc.
#include "tests/simulate/sockets.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace shardwire::simulate {

using internal::LinkListener;

namespace {

constexpr std::uint16_t kPort = 4000;
// The time between two looks at callers that have a limited time.
constexpr Time kLookEvery = 100 * kMillisecond;
// The time until a full buffer of the kernel is tried again.
constexpr Time kFullFor = kMillisecond;

Sockets* theSockets = nullptr;

}  // namespace

Sockets* Sockets::current() {
  return theSockets;
}

Sockets::Sockets(World& world, std::shared_ptr<internal::Fabric> fabric, SocketOptions options)
    : world_(world), fabric_(std::move(fabric)), options_(std::move(options)), random_(options_.seed) {
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
  for (const auto& [fd, port] : ports_) {
    if (port.other >= 0) {
      ::close(port.other);
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
  const int port = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // a descriptor that stands for the listening port
  ports_[port] = {.process = &process, .number = kPort};
  ports.sockets.emplace_back(port);
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

Sockets::Port* Sockets::portOf(const Process* process, int number) {
  const auto found = std::ranges::find_if(
      ports_, [&](const auto& each) { return each.second.process == process && each.second.number == number; });
  return found == ports_.end() ? nullptr : &found->second;
}

// ---- arrivals

const Partition* Sockets::partitionOf(const Process* one, const Process* other, Time now) const {
  const auto isBetween = [&](const Partition& each) {
    const bool isPair =
        (one->rank() == each.a && other->rank() == each.b) || (one->rank() == each.b && other->rank() == each.a);
    return isPair && each.from <= now && now < each.until;
  };
  if (one == nullptr || other == nullptr) {
    return nullptr;
  }
  const auto found = std::ranges::find_if(options_.partitions, isBetween);
  return found == options_.partitions.end() ? nullptr : &*found;
}

// In one direction the bytes keep their order. kNever: nothing arrives any more.
Time Sockets::arrivalOf(Side& from, const Process* to) {
  const Time now = from.process == nullptr ? world_.now() : std::max(from.process->time(), world_.now());
  Time arrives = now + options_.delay();
  if (const Partition* const partition = partitionOf(from.process, to, now)) {
    arrives = partition->until == kNever ? kNever : partition->until + options_.delay();
  }
  return from.lastArrival = std::max(from.lastArrival, arrives);
}

void Sockets::sendPiece(Cable& cable, Side& from, std::string bytes) {
  const Time arrives = arrivalOf(from, cable.across(from).process);
  if (arrives != kNever) {
    world_.at(arrives, [this, &cable, &from, bytes = std::move(bytes)] {
      if (!from.isSilent) {
        deliver(cable, cable.across(from), bytes, false);
      }
    });
  }
}

void Sockets::deliver(Cable& cable, Side& to, const std::string& bytes, bool isEnd) {
  if (to.isClosed) {
    return bytes.empty() ? void() : sendReset(cable, to);
  }
  to.arrived += bytes;
  to.seesEnd |= isEnd;
  if (to.other >= 0 && to.fd >= 0) {
    const ssize_t written = to.arrived.empty() ? 0 : ::write(to.other, to.arrived.data(), to.arrived.size());
    to.arrived.erase(0, static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    arrived(cable.across(to), static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
    if (!to.arrived.empty()) {
      world_.at(world_.now() + kFullFor, [this, &cable, &to] { deliver(cable, to, "", false); });
    } else if (to.seesEnd) {
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

void Sockets::arrive(Cable& cable, Host* host, int number) {
  if (host != nullptr && host->silentSince != kNever) {
    return;
  }
  Port* const port = host == nullptr || host->isDead ? nullptr : portOf(host->process, number);
  if (port != nullptr) {
    cable.listener.process = host->process;
    cable.listener.port = number;
    port->backlog.push_back(&cable);
    if (port->other >= 0) {
      SW_CHECK(::write(port->other, "c", 1) == 1);
    }
    notify(cable.listener);
  }
  const bool isRefused = port == nullptr;
  Side answers{.process = host == nullptr ? nullptr : host->process};
  const Time answered = arrivalOf(answers, cable.dialer.process);
  if (answered == kNever) {
    return;
  }
  world_.at(answered, [this, &cable, isRefused] {
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
  if (const Time arrives = arrivalOf(from, cable.across(from).process); arrives != kNever) {
    world_.at(arrives, [this, &cable, &from] { deliver(cable, cable.across(from), "", true); });
  }
}

// The answer to bytes for a closed socket.
void Sockets::sendReset(Cable& cable, Side& from) {
  from.hasEnded = true;
  const Time arrives =
      from.isSilent || cable.state == State::kNew ? kNever : arrivalOf(from, cable.across(from).process);
  if (arrives != kNever) {
    world_.at(arrives, [this, &cable, &from] {
      cable.across(from).isReset = true;
      deliver(cable, cable.across(from), "", true);
    });
  }
}

// The kernel resets a connection that is closed before all bytes are read.
void Sockets::close(Cable& cable, Side& side) {
  int numUnread = 0;
  if (side.fd >= 0) {
    SW_CHECK(::ioctl(side.fd, FIONREAD, &numUnread) == 0);
  }
  side.isClosed = true;
  numUnread > 0 || !side.arrived.empty() ? sendReset(cable, side) : sendEnd(cable, side);
}

// ---- faults

void Sockets::end(Process& process, bool isHost) {
  if (Host* const host = hostOf(&process)) {
    host->isDead = true;
    host->silentSince = isHost ? world_.now() : kNever;
  }
  for (const auto& each : cables_) {
    for (Side* side : {&each->dialer, &each->listener}) {
      if (side->process == &process) {
        side->isSilent |= isHost;
        close(*each, *side);
      }
    }
  }
}

void Sockets::atCall(const Process& process, int number, std::function<void()> action) {
  hosts_[process.rank()].atCalls[number] = std::move(action);
}

void Sockets::count(const Process* process) {
  Host* const host = hostOf(process);
  if (host == nullptr || host->isDead) {
    return;
  }
  if (const auto found = host->atCalls.find(++host->numCalls); found != host->atCalls.end()) {
    found->second();
  }
}

}  // namespace shardwire::simulate
