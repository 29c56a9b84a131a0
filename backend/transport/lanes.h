// How long the lanes of a connection are. The same on every transport and, with equal options, on every rank, since both ends of an edge
// cut boxes by the longest frame.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// Bytes of a lane's buffer; powers of two.
std::array<std::uint64_t, kNumLanes> laneCapacities(const Options& options);

// What Connection::maxFrameBytes() answers for a lane of this capacity: a quarter of it with an 8-byte header, so that an empty lane takes
// the frame wherever it starts and a full one holds at least three.
constexpr std::size_t maxLaneFrameBytes(std::size_t capacity) {
  return capacity / 4 - 8;
}

}  // namespace shardwire::internal
