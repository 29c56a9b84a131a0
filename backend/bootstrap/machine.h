// The part of the bootstrap that depends on this machine: a rank makes its own ends here, links to peers, and watches
// of other ranks. The simulation makes groups with a machine of its own (tests/simulate). The functions here are the
// real machine's. One thread for each OwnEnds.
#pragma once

#include <memory>
#include <vector>

#include "backend/bootstrap/liveness.h"
#include "backend/bootstrap/own_ends.h"
#include "backend/fabric/doorbell.h"

namespace shardwire::internal {

class Machine {
 public:
  virtual ~Machine() = default;
  // OwnEnds::prepare().
  virtual Status prepare(OwnEnds& own, Rank rank, int worldSize, const Options& options) {
    return own.prepare(rank, worldSize, options);
  }
  virtual std::unique_ptr<Doorbell> makeDoorbell(const OwnEnds& own);
  // RankLinks::dial() and callers().
  virtual Result<Link> dial(OwnEnds& own, Rank peer, TransportKind kind, const WaitLimit& limit) {
    return own.rankLinks.dial(peer, kind, limit);
  }
  virtual Result<std::vector<Caller>> callers(OwnEnds& own) { return own.rankLinks.callers(); }
  // A watch of the other ranks for the rank with these ends.
  virtual std::unique_ptr<LifeWatch> watch(const OwnEnds& own, const Options& options);
};

Machine& thisMachine();

}  // namespace shardwire::internal
