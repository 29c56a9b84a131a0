// The lengths of a connection's lanes. The same on every transport and, with equal options, on every rank, since both
// ends of an edge cut boxes by the longest frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// Bytes of a lane's buffer; powers of two.
std::array<std::uint64_t, kNumLanes> laneCapacities(const Options& options);

// Messages between two ranks up to this many bytes are sent eagerly where a frame of the control lane has room: copying
// them twice takes less time than an offer and its answer.
inline std::size_t eagerBytes(const Options& options) {
  return 4 * options.inlineBytes;
}

// The value of Connection::maxFrameBytes() for a lane of this capacity: a quarter of the capacity with an 8-byte
// header. So an empty lane takes the frame at any position, and a full lane holds at least three.
constexpr std::size_t maxLaneFrameBytes(std::size_t capacity) {
  return capacity / 4 - 8;
}

}  // namespace shardwire::internal
