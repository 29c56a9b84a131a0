// Options::checkAll: before an operation all ranks exchange the arguments of their calls, and the operation starts only
// if nothing differs. Owned through shared_ptr by the operation's gate and the engine; stepped under the engine's lock.
#pragma once

#include <string>
#include <vector>

#include "backend/exec/exchange.h"

namespace shardwire::internal {

struct CallArguments {
  std::string call;  // equal on all ranks: "all_reduce(float32[2, 3], sum)"
  // A text for the data to each rank and from each rank, for calls where each pair of ranks has separate arguments:
  // rank a's sends[b] is rank b's receives[a]. Empty, or one text per rank.
  std::vector<std::string> sends;
  std::vector<std::string> receives;
};

class ArgumentCheck final : public Exchange {
 public:
  ArgumentCheck(const CallArguments& mine, int worldSize, Rank rank);

  bool step(std::vector<bool>& blockedBulk) override;
  bool finished() const override { return compared_; }
  bool cancellable() const override { return false; }

 private:
  Status compare() const;
  void noticeUnchecked(RunContext& context, Rank peer) const;

  bool compared_ = false;
};

}  // namespace shardwire::internal
