// A base of activities whose blobs travel in parts, as large as a control frame may be. Each part has an offset; the
// parts from one peer come in order, and the first part states the length of the whole. Guarded by the group's lock.
#pragma once

#include <cstdint>
#include <string>

#include "backend/exec/activity.h"

namespace shardwire::internal {

class BlobParts : public Activity {
 public:
  // No tensor is touched before the end: a timeout leaves the group usable, and ranks that come later learn that the
  // activity was given up.
  bool cancellable() const override { return true; }

 protected:
  // Bytes that come from a peer.
  struct In {
    Rank peer = 0;
    std::string* bytes = nullptr;
    std::uint64_t totalBytes = 0;  // announced by the first part
    bool hasBegun = false;
    bool isWhole = false;
  };
  // Bytes that go to a peer. The end may be missing so far.
  struct Out {
    Rank peer = 0;
    const std::string* bytes = nullptr;
    std::uint64_t numSent = 0;
    bool isSent = false;
    bool isOpen = true;  // not sent, or a due acknowledgement is missing
  };

  // Sends as much as is there and fits into the lane; true when anything was sent.
  bool sendParts(Out& out, std::uint64_t totalBytes);
  // in: null when no bytes are expected from the rank.
  Status takePart(Rank from, const Received<BlobFrame>& frame, In* in) const;
};

}  // namespace shardwire::internal
