// The plans of all_to_all on random groups with uneven counts: they are sound, fit together, and move every element.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/collectives/families.h"
#include "tests/support/random.h"
#include "tests/support/run_plans.h"

namespace shardwire::internal {
namespace {

using testing::Bytes;
using testing::Random;
using testing::RankBytes;

class AllToAllPlans : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(AllToAllPlans, AreCopiesOfEveryElement) {
  Random random(GetParam());
  const auto n = static_cast<std::size_t>(random.between(1, 6));
  std::vector<std::vector<std::int64_t>> elems(n, std::vector<std::int64_t>(n));  // [from][to]
  for (auto& row : elems) {
    std::ranges::generate(row, [&] { return random.chance(25) ? 0 : random.between(1, 9); });
  }
  const Topology topology{.worldSize = static_cast<int>(n)};
  std::vector<Plan> plans;
  RankBytes inputs(n), outputs(n), expected(n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    std::vector<std::int64_t> arriving;
    for (std::size_t from = 0; from < n; ++from) {
      arriving.push_back(elems[from][rank]);
      const auto size = static_cast<std::size_t>(elems[from][rank]);
      expected[rank].push_back(Bytes(size, static_cast<std::byte>(from * n + rank)));
      outputs[rank].push_back(Bytes(size));
      inputs[rank].push_back(
          Bytes(static_cast<std::size_t>(elems[rank][from]), static_cast<std::byte>(rank * n + from)));
    }
    const CollectiveCall call{
        .kind = Collective::kAllToAll, .dtype = DType::kUInt8, .inputElems = elems[rank], .outputElems = arriving};
    plans.push_back(allToAllProgram(call, Algorithm::kDirect, static_cast<Rank>(rank), topology).stages.at(0).plan);
    EXPECT_EQ(validate(plans.back()).message(), "");
    for (const PlanEdge& edge : plans.back().sends) {
      EXPECT_EQ(edge.numCopies, edge.count);  // an item that counts as combined is not read by the peer over a wire
    }
  }
  EXPECT_EQ(testing::findEdgeMismatch(plans), "");
  testing::runPlans(plans, inputs, outputs);
  EXPECT_EQ(outputs, expected);
}

INSTANTIATE_TEST_SUITE_P(Seeds, AllToAllPlans, ::testing::Range<std::uint64_t>(1, 41));

}  // namespace
}  // namespace shardwire::internal
