// Whether ranks still live while a group is made, when most of them are not connected yet. A rank publishes with its address listeners that
// nobody ever answers: a connection to one waits in the kernel's queue, and is hung up when the process ends, however it ends. On one host
// the listener is a Unix socket; for other hosts, and for processes that can make no Unix socket, it is a TCP port.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/fd.h"
#include "backend/bootstrap/address.h"
#include "backend/fabric/interfaces.h"
#include "backend/fabric/link.h"
#include "backend/fabric/net_socket.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// This rank's own sign of life, as long as it is kept. One thread.
class LifeSign {
 public:
  // Listens at address->lifeName if the process has Unix sockets, and, where wires may be used, at TCP ports that it adds to
  // address->lifeLinks, on `interfaces` (null: no wire may be used).
  static Result<LifeSign> create(const Options& options, const std::vector<InterfaceAddress>* interfaces, int worldSize,
                                 RankAddress* address);

 private:
  Fd local_;
  ListeningPorts remote_;
};

// Watches others' signs. Nothing here waits. One thread.
class LifeWatch {
 public:
  // `interfaces`: of this host, that may be used.
  LifeWatch(const RankAddress& self, std::vector<InterfaceAddress> interfaces);
  // Looks for the sign of a rank; the first look dials. True: the rank is dead, or gone. False: the rank lives, or that is not known: its
  // host is out of reach, or a firewall refuses in its name. A rank that is watched over TCP counts as dead only when it had answered
  // before.
  bool isDead(Rank rank, const RankAddress& address);
  // Whether the rank's sign was seen to refuse every connection, which a firewall may do too.
  bool refuses(Rank rank) const;
  // For a rank that needs no watching any more.
  void forget(Rank rank) { watched_.erase(rank); }

 private:
  struct Watched {
    Fd socket;
    bool isDead = false;
    // Of a rank of another host.
    std::vector<SocketAddress> ways;
    std::size_t way = 0;  // the one that is tried; the number of ways: none is left
    bool isConnected = false;
    bool hasAnswered = false;
    int numRefusals = 0;
    Deadline until{};  // of the connecting
  };

  void lookLocally(Watched& watched, const RankAddress& address);
  void lookRemotely(Watched& watched);
  void dialOn(Watched& watched);
  void waysTo(const RankAddress& address, Watched* watched) const;

  bool isOnThisKernel(const RankAddress& address) const;

  const std::string kernel_;
  const bool hasUnixSocket_;
  const std::vector<InterfaceAddress> interfaces_;
  std::map<Rank, Watched> watched_;
};

}  // namespace shardwire::internal
