// Late links over wires in a simulation of joins: the product's dials, listeners and proofs
// (backend/bootstrap/late_wires) over simulated sockets. The agreement of the transport over a proved link is the
// simulation's, in place of tcp's.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/bootstrap/rank_links.h"
#include "backend/fabric/link_message.h"
#include "backend/transport/endpoint.h"
#include "tests/simulate/sockets.h"

namespace shardwire::simulate {

// Opens the rank's endpoint at the listener of its process. `bell`: the number of the process's bell for the group.
std::vector<internal::NetAddress> openWires(internal::RankLinks& links, Sockets& sockets, Process& process,
                                            std::size_t bell, const internal::RandomId& token, int worldSize,
                                            std::shared_ptr<internal::Fabric> fabric);

// Each end sends one message, "" or why it refuses, and is joined when the other message is "".
class WireJoining final : public internal::Joining {
 public:
  // `join`: makes the connection.
  WireJoining(internal::Link link, std::function<Outcome()> join)
      : link_(std::move(link)), reader_(internal::Link::kMaxMessageBytes), join_(std::move(join)) {}

  std::optional<Outcome> step() override;
  void appendSockets(std::vector<pollfd>* entries) const override;
  std::string awaited() const override { return "waiting for the peer to answer over the simulated link"; }
  void giveUp(const Status& why) override { outcome_ = why; }
  static void refuse(const internal::Link& link, const Status& why);

 private:
  internal::Link link_;
  internal::MessageReader reader_;
  const std::function<Outcome()> join_;
  bool hasSent_ = false;
  std::optional<Outcome> outcome_;
};

// A process of another job, or any other: dials a process in the place of a rank, and proves another token.
class ForeignProcess {
 public:
  // Goes on at times of its own.
  ForeignProcess(World& world, Rank dialed, const internal::LinkKey& key, const internal::LinkHello& hello);
  // Whether a rank welcomed the process.
  bool isAccepted() const { return isAccepted_; }

 private:
  void step();
  // Whether the process still waits for an answer.
  bool goOn();
  void say(internal::LinkMessageType type);

  World& world_;
  const internal::LinkKey key_;
  const internal::LinkHello hello_;
  internal::Fd socket_;
  internal::MessageReader reader_{internal::kMaxHandshakeBytes};
  internal::Challenge challenge_{};
  bool hasGreeted_ = false;
  int numSteps_ = 0;
  bool isAccepted_ = false;
};

}  // namespace shardwire::simulate
