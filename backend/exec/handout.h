// Rank 0 gives every other rank a separate blob, as soon as each is ready: used for shipping plans made by rank 0.
// Owned through shared_ptr by caller and engine; stepped under the engine's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class Handout : public Activity {
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
  bool finished() const override { return numOpen_ == 0; }
  bool needs(Rank peer) const override;
  std::string waitingFor() const override;
  // As for an exchange: no tensor is touched.
  bool cancellable() const override { return true; }

 private:
  // The bytes for one rank, sent in parts.
  struct Out {
    std::string bytes;
    std::uint64_t numSent = 0;
    bool isGiven = false;
    bool isSent = false;
  };

  bool sendTo(Rank peer, Out& out);
  Status misplaced(Rank from, const BlobFrame& frame) const;

  const Rank rank_;
  std::vector<Out> outs_;         // rank 0: by rank
  std::vector<Rank> waiting_;     // rank 0: given and not sent
  std::size_t numOpen_ = 0;       // rank 0: not sent; other ranks: 1 until the whole blob is here
  std::string received_;          // other ranks
  std::uint64_t totalBytes_ = 0;  // of received_, as announced by the first part
  bool hasBegun_ = false;
};

}  // namespace shardwire::internal
