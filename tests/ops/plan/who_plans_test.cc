#include "ops/plan/who_plans.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

TEST(WhoPlans, RanksWithCoresOfTheirOwnNeverShip) {
  for (const int ranks : {17, 64, 1024, 65536}) {
    EXPECT_FALSE(isShippingSooner(ranks, std::size_t{1} << 30, 1.0));
  }
}

TEST(WhoPlans, ManyRanksOnFewCoresShipWhatIsLargeEnough) {
  EXPECT_TRUE(isShippingSooner(64, 1 << 20, 32));
  EXPECT_FALSE(isShippingSooner(64, 1 << 10, 32));
  EXPECT_FALSE(isShippingSooner(1024, 1 << 20, 32));
  EXPECT_TRUE(isShippingSooner(1024, 1 << 20, 64));
}

}  // namespace
}  // namespace shardwire::internal
