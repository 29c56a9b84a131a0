// Whether ranks still live while a group is made, when most of them are not connected yet. A rank publishes, with its
// address, listeners that never accept a connection. A connection to such a listener waits in the kernel's queue. The
// kernel hangs the connection up when the process ends, for whatever reason. On one host the listener is a Unix socket;
// for other hosts, and for processes without a Unix socket, the listener is a TCP port.
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

// This rank's own sign of life, shown until this object is destroyed. One thread.
class LifeSign {
 public:
  // Listens at address->lifeName if the process has Unix sockets. Where wires may be used, also listens at TCP ports on
  // `interfaces` (null: no wire may be used), and puts their addresses into address->lifeLinks.
  static Result<LifeSign> create(const Options& options, const std::vector<InterfaceAddress>* interfaces, int worldSize,
                                 RankAddress* address);

 private:
  Fd local_;
  ListeningPorts remote_;
};

// Watches other ranks' signs of life. No call waits. One thread.
class LifeWatch {
 public:
  // `interfaces`: the interfaces of this host that may be used.
  LifeWatch(const RankAddress& self, std::vector<InterfaceAddress> interfaces);
  virtual ~LifeWatch() = default;
  // Checks the sign of a rank; the first check dials. True: the rank is dead, or gone. False: the rank lives, or its
  // state is not known: the host is out of reach, or a firewall refuses connections in its name. A rank watched over
  // TCP counts as dead only if the rank answered before.
  virtual bool isDead(Rank rank, const RankAddress& address);
  // Whether the rank's sign has answered since the watch of the rank began: the rank lived then.
  virtual bool hasAnswered(Rank rank) const;
  // Whether the rank's sign refused every connection. A firewall may do this, too.
  virtual bool refuses(Rank rank) const;
  // Ends the watch of a rank.
  virtual void forget(Rank rank) { watched_.erase(rank); }

 private:
  struct Watched {
    Fd socket;
    bool isDead = false;
    bool hasAnswered = false;
    // For a rank of another host.
    std::vector<SocketAddress> ways;
    std::size_t way = 0;  // the address being tried; equal to the number of addresses: none is left
    bool isConnected = false;
    int numRefusals = 0;
    Deadline until{};  // of the connection attempt
  };

  void lookLocally(Watched& watched, const RankAddress& address);
  void lookRemotely(Watched& watched);
  void dialOn(Watched& watched);
  void waysTo(const RankAddress& address, Watched* watched) const;

  bool isOnThisKernel(const RankAddress& address) const { return !kernel_.empty() && address.kernel == kernel_; }

  const std::string kernel_;
  const bool hasUnixSocket_;
  const std::vector<InterfaceAddress> interfaces_;
  std::map<Rank, Watched> watched_;
};

}  // namespace shardwire::internal
