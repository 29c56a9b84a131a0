#include "backend/transport/lanes.h"

#include <algorithm>
#include <bit>

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kControlBytes = std::uint64_t{64} << 10;
constexpr std::uint64_t kPointBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kMinLaneBytes = 4096;

}  // namespace

std::array<std::uint64_t, kNumLanes> laneCapacities(const Options& options) {
  const std::uint64_t control =
      std::max<std::uint64_t>(kControlBytes, std::bit_ceil(std::uint64_t{options.inlineBytes} * 8));
  const std::uint64_t bulk = std::max(kMinLaneBytes, std::bit_ceil(std::uint64_t{options.ringBytes}));
  return {control, bulk, kPointBytes};
}

}  // namespace shardwire::internal
