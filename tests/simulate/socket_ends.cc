// The system calls of the product on simulated sockets. make() gives the product one descriptor of a pair, and listen()
// makes a port of it. connect() plans the arrival at a port, and accept() takes the oldest connection of a port. A sent
// message may arrive in two pieces, and a socket may take a part of the bytes and nothing more for a moment. The
// addresses of a connection are its processes' and two ports. A closed descriptor sends the end to the other side.
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "tests/simulate/sockets.h"

namespace shardwire::simulate {
namespace {

// The longest time for which a socket takes no bytes.
constexpr Time kLongestFull = 3 * kMillisecond;
// A host without an acknowledgement for this time counts as silent.
constexpr Time kSilentAfter = 300 * kMillisecond;

}  // namespace

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
  if (const int bytes = static_cast<int>(options_.bufferBytes); bytes > 0) {
    SW_CHECK(::setsockopt(side.other, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes) == 0);
  }
}

bool Sockets::make(int domain, int type, int* fd) {
  if (domain != AF_INET || (type & SOCK_STREAM) == 0) {
    return false;
  }
  Cable& cable = *cables_.emplace_back(std::make_unique<Cable>());
  cable.dialer.process = Process::running();
  cable.dialer.port = ++lastPort_;
  openSide(cable.dialer);
  byFd_[cable.dialer.fd] = &cable;
  *fd = cable.dialer.fd;
  return true;
}

bool Sockets::listen(int fd) {
  Side* side = nullptr;
  if (find(fd, &side) == nullptr) {
    return false;
  }
  ports_[fd] = {.process = side->process, .number = side->port, .other = std::exchange(side->other, -1)};
  side->fd = -1;
  byFd_.erase(fd);
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
  const auto found = hosts_.find(static_cast<Rank>(ntohl(to.sin_addr.s_addr) & 0xff) - 1);
  Host* const host = found == hosts_.end() ? nullptr : &found->second;
  cable->state = State::kConnecting;
  world_.note(world_.now(), side->process == nullptr ? -1 : side->process->rank(), "dials port {} of process {}",
              ntohs(to.sin_port), host == nullptr ? -1 : found->first);
  const Time arrives = arrivalOf(*side, host == nullptr ? nullptr : host->process);
  if (arrives != kNever) {
    world_.at(arrives, [this, cable, host, port = ntohs(to.sin_port)] { arrive(*cable, host, port); });
  }
  count(side->process);
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
  const auto found = ports_.find(listener);
  if (found == ports_.end()) {
    return false;
  }
  Port& port = found->second;
  *fd = -1;
  if (!port.backlog.empty()) {
    Cable& cable = *port.backlog.front();
    port.backlog.pop_front();
    if (char byte = 0; port.other >= 0) {
      SW_CHECK(::recv(listener, &byte, 1, 0) == 1);
    }
    openSide(cable.listener);
    byFd_[cable.listener.fd] = &cable;
    *fd = cable.listener.fd;
    deliver(cable, cable.listener, "", cable.listener.seesEnd);
    count(port.process);
  }
  errno = EAGAIN;
  return true;
}

bool Sockets::send(int fd, std::string bytes, bool mayBlock, ssize_t* taken, int* error) {
  Side* side = nullptr;
  Cable* const cable = find(fd, &side);
  if (cable == nullptr) {
    return false;
  }
  const Time now = side->process == nullptr ? world_.now() : side->process->time();
  *error = side->isReset ? EPIPE : mayBlock && (now < side->takesFrom || side->isFull) ? EAGAIN : 0;
  *taken = *error == 0 ? std::ssize(bytes) : -1;
  if (*error != 0) {
    return true;
  }
  const bool isWhole = std::exchange(side->takesWhole, false);
  if (!isWhole && mayBlock && bytes.size() > 1 && random_.chance(options_.shortPercent)) {
    *taken = random_.between(1, std::ssize(bytes) - 1);
    bytes.resize(static_cast<std::size_t>(*taken));
    blockUntil(*side, now + random_.between(0, kLongestFull));
  }
  if (options_.bufferBytes > 0) {
    const std::size_t room = options_.bufferBytes - std::min(options_.bufferBytes, side->underWay);
    if (mayBlock && !isWhole && bytes.size() > room) {
      bytes.resize(std::max<std::size_t>(room, 1));
      *taken = std::ssize(bytes);
    }
    side->underWay += bytes.size();
    if (side->underWay >= options_.bufferBytes) {
      side->isFull = true;
      block(*side);
    }
  }
  if (bytes.size() > 1 && !side->hasEnded && random_.chance(options_.piecesPercent)) {
    const auto first = static_cast<std::size_t>(random_.between(1, std::ssize(bytes) - 1));
    sendPiece(*cable, *side, bytes.substr(0, first));
    bytes.erase(0, first);
  }
  if (!side->hasEnded) {
    sendPiece(*cable, *side, std::move(bytes));
  }
  count(side->process);
  return true;
}

void Sockets::blockUntil(Side& side, Time when) {
  side.takesFrom = when;
  block(side);
  world_.at(when, [this, &side] { unblock(side); });
}

// The kernel takes a descriptor for writable as long as its buffer has room: bytes that nobody wants fill the buffer.
void Sockets::block(Side& side) {
  constexpr int kSmallest = 1;  // the kernel makes it some KiB
  std::array<char, 4096> unwanted{};
  if (options_.isBlocking && !std::exchange(side.isFilled, true)) {
    ::setsockopt(side.fd, SOL_SOCKET, SO_SNDBUF, &kSmallest, sizeof kSmallest);
    while (::write(side.fd, unwanted.data(), unwanted.size()) > 0) {
    }
  }
}

void Sockets::unblock(Side& side) {
  std::array<char, 4096> unwanted{};
  if (side.isFull || world_.now() < side.takesFrom) {
    return;
  }
  while (side.isFilled && side.other >= 0 && ::read(side.other, unwanted.data(), unwanted.size()) > 0) {
  }
  side.isFilled = false;
  notify(side);
}

// As the kernel's: full until a third of the buffer is empty.
void Sockets::arrived(Side& from, std::size_t bytes) {
  from.underWay -= std::min(bytes, from.underWay);
  if (from.isFull && 3 * from.underWay <= 2 * options_.bufferBytes) {
    from.isFull = false;
    unblock(from);
  }
}

bool Sockets::changesKey(int fd, std::uint64_t numRecords) {
  Side* side = nullptr;
  const bool isDue = options_.recordsPerKey > 0 && numRecords >= static_cast<std::uint64_t>(options_.recordsPerKey) &&
                     find(fd, &side) != nullptr && side->process != nullptr && !side->isFull &&
                     side->takesFrom <= side->process->time();
  if (isDue) {
    side->takesWhole = true;
    world_.note(side->process->time(), side->process->rank(), "changes the key of a TLS stream");
  }
  return isDue;
}

bool Sockets::unacknowledged(int fd, int* bytes) {
  Side* side = nullptr;
  const bool isHere = options_.bufferBytes > 0 && find(fd, &side) != nullptr;
  *bytes = isHere ? static_cast<int>(side->underWay) : 0;
  return isHere;
}

bool Sockets::shutDown(int fd) {
  Side* side = nullptr;
  Cable* const cable = find(fd, &side);
  if (cable != nullptr) {
    sendEnd(*cable, *side);
  }
  return cable != nullptr;
}

bool Sockets::address(int fd, bool isRemote, void* address, unsigned* size) const {
  const auto found = byFd_.find(fd);
  const auto port = ports_.find(fd);
  if (found == byFd_.end() && port == ports_.end()) {
    return false;
  }
  const Process* process = port == ports_.end() ? nullptr : port->second.process;
  int number = port == ports_.end() ? 0 : port->second.number;
  if (found != byFd_.end()) {
    const Cable& cable = *found->second;
    const Side& side = (cable.dialer.fd == fd) != isRemote ? cable.dialer : cable.listener;
    process = side.process;
    number = side.port;
  }
  sockaddr_in made{};
  made.sin_family = AF_INET;
  made.sin_port = htons(static_cast<std::uint16_t>(number));
  made.sin_addr.s_addr = htonl(0x0a000000U + (process == nullptr ? 0xffU : static_cast<unsigned>(process->rank()) + 1));
  std::memcpy(address, &made, std::min<std::size_t>(*size, sizeof made));
  *size = sizeof made;
  return true;
}

bool Sockets::silence(int fd, Time* silent) {
  Side* side = nullptr;
  Cable* const cable = find(fd, &side);
  if (cable == nullptr || side->process == nullptr) {
    return false;
  }
  const Process* const peer = cable->across(*side).process;
  const Time now = side->process->time();
  const Host* const host = hostOf(peer);
  const Partition* const partition = partitionOf(side->process, peer, now);
  const Time since =
      std::min(host == nullptr ? kNever : host->silentSince, partition == nullptr ? kNever : partition->from);
  *silent = since == kNever || now - since < kSilentAfter ? 0 : now - since;
  return true;
}

bool Sockets::isReset(int fd) {
  Side* side = nullptr;
  return find(fd, &side) != nullptr && side->isReset;
}

void Sockets::closed(int fd) {
  if (const auto found = ports_.find(fd); found != ports_.end()) {
    for (Cable* const each : found->second.backlog) {
      each->listener.isClosed = true;
      sendReset(*each, each->listener);
    }
    if (found->second.other >= 0) {
      ::close(found->second.other);
    }
    ports_.erase(found);
    return;
  }
  Side* side = nullptr;
  if (Cable* const cable = find(fd, &side)) {
    byFd_.erase(fd);
    if (!side->isClosed) {  // else with the process
      close(*cable, *side);
    }
    side->fd = -1;
    ::close(std::exchange(side->other, -1));
  }
}

}  // namespace shardwire::simulate
