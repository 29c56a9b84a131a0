// A check of a rank's sign of life. On this kernel a Unix socket decides at once: a connection that hangs up is dialed
// again, and if no process listens, the rank is dead. Over TCP a check starts a connection to the rank's first address,
// and later checks read its state. A rank that never answered is tried at the next address; a rank that answered once
// and now refuses is dead; a timeout decides nothing.
#include "backend/bootstrap/liveness.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>

#include "backend/base/log.h"
#include "backend/fabric/unix_socket.h"

namespace shardwire::internal {
namespace {

// Every rank of the host may wait in the queue, and foreign connections, too.
constexpr int kMinBacklog = 1024;
constexpr Duration kConnectWithin = std::chrono::seconds(2);

// Whether the kernel has decided the state of the socket: connected, refused, or hung up.
short stateOf(const Fd& socket, short events) {
  pollfd entry{socket.get(), events, 0};
  return ::poll(&entry, 1, 0) > 0 ? entry.revents : static_cast<short>(0);
}

}  // namespace

Result<LifeSign> LifeSign::create(const Options& options, const std::vector<InterfaceAddress>* interfaces,
                                  int worldSize, RankAddress* address) {
  LifeSign sign;
  if (address->hasUnixSocket()) {
    auto local = listenUnix(address->lifeName, std::max(worldSize, kMinBacklog));
    SW_RETURN_IF_ERROR(local.status());
    sign.local_ = std::move(*local);
  }
  if (interfaces != nullptr) {
    auto remote = listenOnInterfaces(*interfaces, options);
    SW_RETURN_IF_ERROR(remote.status());
    address->lifeLinks = remote->addresses;
    sign.remote_ = std::move(*remote);
  }
  return sign;
}

LifeWatch::LifeWatch(const RankAddress& self, std::vector<InterfaceAddress> interfaces)
    : kernel_(self.kernel), hasUnixSocket_(self.hasUnixSocket()), interfaces_(std::move(interfaces)) {}

bool LifeWatch::isDead(Rank rank, const RankAddress& address) {
  const auto [entry, isNew] = watched_.try_emplace(rank);
  Watched& watched = entry->second;
  if (watched.isDead) {
    return true;
  }
  if (isOnThisKernel(address) && hasUnixSocket_ && address.hasUnixSocket()) {
    lookLocally(watched, address);
    return watched.isDead;
  }
  if (isNew) {
    waysTo(address, &watched);
    dialOn(watched);
  }
  lookRemotely(watched);
  return watched.isDead;
}

bool LifeWatch::hasAnswered(Rank rank) const {
  const auto found = watched_.find(rank);
  return found != watched_.end() && found->second.hasAnswered;
}

bool LifeWatch::refuses(Rank rank) const {
  const auto found = watched_.find(rank);
  return found != watched_.end() &&
         (found->second.isDead || (!found->second.ways.empty() && found->second.numRefusals > 0 &&
                                   found->second.way == found->second.ways.size()));
}

// Both ranks run on the kernel that knows the name: if no process listens there, the owner is gone.
void LifeWatch::lookLocally(Watched& watched, const RankAddress& address) {
  if (watched.socket.isOpen() && !isHungUp(watched.socket)) {
    return;
  }
  watched.socket.reset();
  auto socket = tryDialUnix(address.lifeName);
  if (!socket.isOk()) {
    return logDebug("no look at the sign of life of pid {}: {}", address.pid, socket.status().message());
  }
  watched.isDead = !socket->isOpen();
  watched.hasAnswered |= socket->isOpen();
  watched.socket = std::move(*socket);
}

void LifeWatch::waysTo(const RankAddress& address, Watched* watched) const {
  const auto reach = isOnThisKernel(address) ? orderByReach(address.lifeLinks, interfaces_)
                                             : orderByReachElsewhere(address.lifeLinks, interfaces_);
  for (const NetAddress& to : reach) {
    if (const auto way = makeSocketAddress(to.ip, to.scope, to.port); way.isOk()) {
      watched->ways.push_back(*way);
    }
  }
}

// Starts to connect to the first address, from watched.way on, for which a connection can be started.
void LifeWatch::dialOn(Watched& watched) {
  watched.isConnected = false;
  watched.socket.reset();
  for (; watched.way < watched.ways.size(); ++watched.way) {
    if (auto socket = startTcp(watched.ways[watched.way]); socket.isOk()) {
      watched.socket = std::move(*socket);
      setKeepAlive(watched.socket, false);  // an outage of the network decides nothing here
      watched.until = Clock::now() + kConnectWithin;
      return;
    }
  }
}

void LifeWatch::lookRemotely(Watched& watched) {
  if (!watched.socket.isOpen()) {
    return;
  }
  if (watched.isConnected) {
    if ((stateOf(watched.socket, POLLIN | POLLRDHUP) & (POLLIN | POLLHUP | POLLRDHUP | POLLERR)) != 0) {
      dialOn(watched);  // a device on the way may have ended the connection: ask the host itself
    }
    return;
  }
  const bool isDecided = stateOf(watched.socket, POLLOUT) != 0;
  if (!isDecided && Clock::now() < watched.until) {
    return;
  }
  const int error = isDecided ? socketError(watched.socket) : ETIMEDOUT;
  // A reset comes from a connection that was made: the process has answered, and has ended since. A host without a
  // listener answers ECONNREFUSED.
  watched.hasAnswered |= error == 0 || error == ECONNRESET;
  if (error == 0) {
    watched.isConnected = true;
    return;
  }
  if (error == ECONNRESET) {
    return dialOn(watched);
  }
  watched.numRefusals += error == ECONNREFUSED ? 1 : 0;
  if (watched.hasAnswered) {
    watched.isDead = error == ECONNREFUSED;
    watched.socket.reset();  // otherwise the host is out of reach now, and the rank's state is not known
    return;
  }
  ++watched.way;
  dialOn(watched);
}

}  // namespace shardwire::internal
