// Control frames of operations that this rank has not called yet, kept until the operation starts. Guarded by the
// group's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "shardwire/types.h"

namespace shardwire::internal {

class EarlyFrames {
 public:
  bool empty() const { return kept_.empty(); }
  void keep(Rank from, std::uint64_t seq, std::span<const std::byte> frame);
  // Calls `take(from, frame)` for each kept frame of operation `seq`, in the order of arrival.
  template <typename Take>
  void give(std::uint64_t seq, Take&& take) {
    for (std::size_t i = 0; i < kept_.size();) {
      if (kept_[i].seq != seq) {
        ++i;
        continue;
      }
      Frame frame = std::move(kept_[i]);
      kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
      take(frame.from, frame.bytes);
      if (spareBuffers_.size() < kMostSpares && frame.bytes.capacity() <= kLongestSpare) {
        frame.bytes.clear();
        spareBuffers_.push_back(std::move(frame.bytes));
      }
    }
  }
  // The first of `peers` with a kept blob frame of operation `seq` with one of the fingerprints; -1: no peer.
  Rank firstBlobFrom(std::uint64_t seq, std::span<const Rank> peers, std::span<const std::uint64_t> fingerprints) const;

 private:
  struct Frame {
    Rank from = 0;
    std::uint64_t seq = 0;  // of the frame's operation
    std::vector<std::byte> bytes;
  };

  // Larger or more buffers are released: a long exchange that comes early takes thousands.
  static constexpr std::size_t kMostSpares = 64;
  static constexpr std::size_t kLongestSpare = 1024;

  std::vector<Frame> kept_;
  std::vector<std::vector<std::byte>> spareBuffers_;
};

}  // namespace shardwire::internal
