#include "backend/exec/early_frames.h"

#include <algorithm>
#include <optional>

#include "backend/exec/frame.h"

namespace shardwire::internal {

void EarlyFrames::keep(Rank from, std::uint64_t seq, std::span<const std::byte> frame) {
  Frame early{from, seq, {}};
  if (!spareBuffers_.empty()) {
    early.bytes = std::move(spareBuffers_.back());
    spareBuffers_.pop_back();
  }
  early.bytes.assign(frame.begin(), frame.end());
  kept_.push_back(std::move(early));
}

Rank EarlyFrames::firstBlobFrom(std::uint64_t seq, std::span<const Rank> peers,
                                std::span<const std::uint64_t> fingerprints) const {
  for (const Frame& early : kept_) {
    const auto blob = early.seq == seq ? readFrame<BlobFrame>(early.bytes) : std::nullopt;
    if (blob.has_value() && std::ranges::find(fingerprints, blob->operation.fingerprint) != fingerprints.end() &&
        std::ranges::find(peers, early.from) != peers.end()) {
      return early.from;
    }
  }
  return -1;
}

}  // namespace shardwire::internal
