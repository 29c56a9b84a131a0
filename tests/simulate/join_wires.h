// Late links over wires in a simulation of joins: the product's dials, listeners, proofs and tcp connections over
// simulated sockets (backend/bootstrap/late_wires, backend/transport/tcp).
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

// The product's tcp. `fails`: whether this rank gives up each set-up that it begins.
class WireEndpoint final : public internal::Endpoint {
 public:
  WireEndpoint(const internal::Self& self, std::function<bool()> fails);
  std::string address() const override { return tcp_->address(); }
  std::string whyNot(std::string_view peerAddress) const override { return tcp_->whyNot(peerAddress); }
  bool mayJoinLate() const override { return true; }
  std::unique_ptr<internal::Joining> begin(internal::Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                           const std::string& who) override;
  void refuse(internal::Link link, const Status& why) override { tcp_->refuse(std::move(link), why); }
  std::unique_ptr<internal::Wire> takeWire() override { return tcp_->takeWire(); }

 private:
  std::unique_ptr<internal::Endpoint> tcp_;
  const std::function<bool()> fails_;
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
