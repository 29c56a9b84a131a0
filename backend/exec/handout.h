// Rank 0 gives every other rank a separate blob, as soon as each is ready: used for shipping plans made by rank 0.
// Owned through shared_ptr by caller and engine; stepped under the engine's lock.
#pragma once

#include <string>
#include <vector>

#include "backend/exec/blob_parts.h"

namespace shardwire::internal {

class Handout : public BlobParts {
 public:
  Handout(int worldSize, Rank rank);

  // On rank 0, once for each other rank, in any order, under the engine's lock. A handout that is over ignores the
  // blob.
  void give(Rank to, std::string blob);
  // The other ranks: valid once done without error.
  const std::string& received() const { return received_; }

  bool step(std::vector<bool>& blockedBulk) override;
  Status onBlob(Rank from, const Received<BlobFrame>& frame) override;
  Status onCancel(Rank from, const Received<CancelFrame>& frame) override;
  bool finished() const override { return rank_ == 0 ? numOpen_ == 0 : in_.isWhole; }
  bool needs(Rank peer) const override;
  std::string waitingFor() const override;

 private:
  bool sendTo(Rank peer);

  const Rank rank_;
  std::vector<std::string> given_;  // rank 0: by rank
  std::vector<Out> outs_;           // rank 0: by rank; bytes is null until the rank's blob is given
  std::vector<Rank> waiting_;       // rank 0: given and not sent
  std::size_t numOpen_ = 0;         // rank 0: not sent
  std::string received_;            // other ranks
  In in_{.bytes = &received_};      // other ranks
};

}  // namespace shardwire::internal
