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
      : context_(context), operations_(operations), questions_(static_cast<std::size_t>(context.worldSize)) {}

  // RunHost::desync and RunHost::refuseStale.
  bool ask(Rank peer, std::uint64_t seq);
  bool refuseStale(Rank peer);
  void onDesync(Rank from, const Received<DesyncFrame>& frame);
  // The peer is gone, for the reason `whyGone`, and left this rank's question without an answer: the error of the
  // group. Ok: nothing was asked.
  Status unanswered(Rank peer, const Status& whyGone) const;

 private:
  struct Question {
    std::uint64_t seq = 0;  // the operation whose description this rank asks for; 0: none
    bool isSent = false;
  };

  const RunContext& context_;
  const Operations& operations_;
  std::vector<Question> questions_;  // by peer
};

}  // namespace shardwire::internal
