// Ranks that called different operations: finds the peer's call, and fails the group with both calls. Guarded by the
// group's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/exec/operations.h"

namespace shardwire::internal {

class Disagreements {
 public:
  Disagreements(const RunContext& context, const Operations& operations)
      : context_(context), operations_(operations), askedSeq_(static_cast<std::size_t>(context.worldSize)) {}

  // RunHost::desync and RunHost::refuseStale.
  bool ask(Rank peer, std::uint64_t seq);
  bool refuseStale(Rank peer);
  void onDesync(Rank from, const Received<DesyncFrame>& frame);

 private:
  const RunContext& context_;
  const Operations& operations_;
  std::vector<std::uint64_t> askedSeq_;  // by peer: the operation whose description this rank asked for; 0: none
};

}  // namespace shardwire::internal
