// Every rank gives one blob of bytes and gets all ranks' blobs: how specs are exchanged.
// Owned through shared_ptr by caller and engine; stepped under the engine's lock.
#pragma once

#include <string>
#include <vector>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class Exchange final : public Activity {
 public:
  Exchange(std::string mine, int worldSize, Rank rank);

  bool step(Engine& engine, std::vector<bool>& blockedBulk) override;
  Status onFrame(Engine& engine, Rank from, const FrameHeader& header, std::span<const std::byte> payload) override;
  bool finished() const override { return numSent_ == blobs_.size() && numReceived_ == blobs_.size(); }
  bool needs(Rank peer) const override;
  std::string waitingFor() const override;
  // A timeout leaves the group usable, and ranks that come later learn that it was given up.
  bool cancellable() const override { return true; }

  // By rank, this rank's included. Valid once done without error.
  const std::vector<std::string>& blobs() const { return blobs_; }

 private:
  bool sendTo(Engine& engine, Rank peer);

  const Rank rank_;
  std::vector<std::string> blobs_;
  std::vector<std::size_t> sent_;  // payload bytes sent, by peer
  std::vector<bool> sentAll_;
  std::vector<std::size_t> received_;  // payload bytes received, by peer
  std::vector<bool> receivedAll_;
  std::size_t numSent_ = 0;
  std::size_t numReceived_ = 0;
};

}  // namespace shardwire::internal
