#include "ops/plan/who_plans.h"

#include <cmath>

namespace shardwire::internal {
namespace {

// For a plan of many boxes rank 0 needs more than the square root says (1,024 ranks x 64 boxes: 50 and not 32).
constexpr double kMargin = 1.5;
// Ranks that take turns need as long again for the votes and verdicts of shipping: at 37 kB of 24 ranks on 2 cores the
// two were equal.
constexpr std::size_t kLeastBytes = 64 << 10;

}  // namespace

bool isShippingSooner(int worldSize, std::size_t specBytes, double ranksPerCore) {
  return specBytes >= kLeastBytes && ranksPerCore > kMargin * std::sqrt(static_cast<double>(worldSize));
}

}  // namespace shardwire::internal
