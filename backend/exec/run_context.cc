#include "backend/exec/run_context.h"

#include <fmt/format.h>

namespace shardwire::internal {

void RunContext::refuseStaged(Rank peer, const OperationTag& operation, std::span<const std::byte> frame) const {
  const auto staged = readFrame<StagedFrame>(frame);
  if (!staged.has_value()) {
    fail(unreadableFrame(peer, Lane::kBulk, frame));
  } else if (staged->operation.seq != operation.seq) {
    return;  // another operation's bytes come first
  } else if (staged->operation.fingerprint != operation.fingerprint) {
    desync(peer, operation.seq);
  } else {
    // A sender with other options cuts boxes otherwise.
    fail({StatusCode::kInternal,
          fmt::format("rank {} sent a staged frame that cannot be read: segments of {} bytes there, {} here. "
                      "SHARDWIRE_RING_BYTES must be the same on all ranks",
                      peer, staged->segmentBytes, segmentBytes)});
  }
}

}  // namespace shardwire::internal
