// compileOp where rank 0 plans for all, and ops planned without a group. For errors on a plan's way see
// exec/ship_rows_test.
#include <fmt/format.h>

#include <numeric>

#include "shardwire/offline.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using namespace std::chrono;

// Row slabs in, column slabs out.
LocalSpec turn(Rank rank, int n, std::int64_t rows, WhoPlans who = WhoPlans::kRank0) {
  const auto whole = rows * n;
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{whole, whole}, .dtype = DType::kInt64});
  spec.inputs.push_back(
      {.localShape = {rows, whole}, .slices = {{.slice = {{rank * rows, 0}, {rows, whole}}, .localOffset = {0, 0}}}});
  spec.outputs.push_back(
      {.localShape = {whole, rows}, .slices = {{.slice = {{0, rank * rows}, {whole, rows}}, .localOffset = {0, 0}}}});
  spec.whoPlans = who;
  return spec;
}

void runTurn(Communicator& group, CompiledOp& op, std::int64_t rows) {
  const std::int64_t whole = rows * group.worldSize();
  std::vector<std::int64_t> input(static_cast<std::size_t>(rows * whole));
  std::iota(input.begin(), input.end(), group.rank() * rows * whole);
  std::vector<std::int64_t> output(input.size(), -1);
  const TensorView in = TensorView::contiguous(input.data(), DType::kInt64, {rows, whole});
  const TensorView out = TensorView::contiguous(output.data(), DType::kInt64, {whole, rows});
  expectOk(op.run({&in, 1}, {&out, 1}));
  for (std::int64_t i = 0; i < whole; ++i) {
    for (std::int64_t j = 0; j < rows; ++j) {
      ASSERT_EQ(output[static_cast<std::size_t>(i * rows + j)], i * whole + group.rank() * rows + j);
    }
  }
}

void compileAndRun(Communicator& group, std::int64_t rows, WhoPlans who = WhoPlans::kRank0) {
  auto op = group.compileOp(turn(group.rank(), group.worldSize(), rows, who));
  ASSERT_TRUE(op.isOk()) << op.status().message();
  runTurn(group, **op, rows);
}

// Each of these tests also runs with 33 ranks, which plans reach in two steps, in a separate test: over rdma each
// pair's link takes 4 MiB, and the machine of tests/rig/run_rdma.py has no room for 33 * 32 links.

void movesWhatItShould(int n) {
  SCOPED_TRACE(n);
  withGroup(n, [n](Communicator& group) {
    compileAndRun(group, 3);
    auto shipped = group.compileOp(turn(group.rank(), n, 2));
    auto alone = group.compileOp(turn(group.rank(), n, 2, WhoPlans::kEachRank));
    ASSERT_TRUE(shipped.isOk() && alone.isOk());
    EXPECT_EQ((*shipped)->planBytes(), (*alone)->planBytes());
    runTurn(group, **alone, 2);
    runTurn(group, **shipped, 2);
    EXPECT_EQ((*shipped)->stats().bytesSent, (*alone)->stats().bytesSent);
    const std::string json = (*shipped)->explainJson();
    EXPECT_EQ(json.find("\"lower_bound_bytes\":null") == std::string::npos, group.rank() == 0) << json;
    EXPECT_EQ((*shipped)->explain().find("another rank planned") == std::string::npos, group.rank() == 0);
    EXPECT_EQ((*shipped)->inputs(), (*alone)->inputs());
    EXPECT_EQ((*shipped)->tensors(), (*alone)->tensors());
  });
}

TEST(PlannedByRank0, MovesWhatItShouldAndIsThePlanThatEachMakesAlone) {
  for (const int n : {1, 2, 4, 17}) {
    movesWhatItShould(n);
  }
}

TEST(PlannedByRank0, MovesWhatItShouldForManyRanks) {
  movesWhatItShould(33);
}

void aWrongSpecIsOneError(int n) {
  Sayings shipped;
  Sayings alone;
  Sayings gaps;
  withGroup(n, [&](Communicator& group) {
    for (const WhoPlans who : {WhoPlans::kRank0, WhoPlans::kEachRank}) {
      LocalSpec spec = turn(group.rank(), n, 1, who);
      if (group.rank() == n - 1) {
        spec.inputs[0].slices[0].slice.offset = {100, 0};
      }
      (who == WhoPlans::kRank0 ? shipped : alone).add(group.compileOp(spec).status());
    }
    LocalSpec missing = turn(group.rank(), n, 1);
    if (group.rank() == 1) {
      missing.inputs.clear();
    }
    gaps.add(group.compileOp(missing).status());
    compileAndRun(group, 1);
  });
  expectSays(shipped.only(static_cast<std::size_t>(n)), StatusCode::kInvalidArgument, fmt::format("rank {}", n - 1));
  EXPECT_EQ(shipped.only(static_cast<std::size_t>(n)), alone.only(static_cast<std::size_t>(n)));
  expectSays(gaps.only(static_cast<std::size_t>(n)), StatusCode::kGap, "no input covers");
}

TEST(PlannedByRank0, AWrongSpecIsTheErrorThatEachWouldFindAlone) {
  aWrongSpecIsOneError(3);
}
TEST(PlannedByRank0, AWrongSpecOfManyRanksIsTheErrorThatEachWouldFindAlone) {
  aWrongSpecIsOneError(33);
}

void findOneErrorWhere(Rank other, int n) {
  SCOPED_TRACE(fmt::format("{} of {}", other, n));
  Sayings sayings;
  withGroup(n, [&](Communicator& group) {
    sayings.add(
        group.compileOp(turn(group.rank(), n, 1, group.rank() == other ? WhoPlans::kEachRank : WhoPlans::kRank0))
            .status());
    compileAndRun(group, 1);
    compileAndRun(group, 1, WhoPlans::kEachRank);
  });
  expectSays(sayings.only(static_cast<std::size_t>(n)), StatusCode::kInvalidArgument,
             other == 0
                 ? "rank 0 gives is_spmd=False (each rank plans), rank 1 gives is_spmd=True (rank 0 plans for all)"
                 : fmt::format("rank 0 gives is_spmd=True (rank 0 plans for all), rank {} gives is_spmd=False", other));
}

TEST(PlannedByRank0, RanksThatDisagreeAboutItFindOneError) {
  findOneErrorWhere(0, 3);
  findOneErrorWhere(2, 3);
}

TEST(PlannedByRank0, ManyRanksThatDisagreeAboutItFindOneError) {
  findOneErrorWhere(0, 33);
  findOneErrorWhere(20, 33);
}

TEST(PlannedByRank0, ARankThatDoesNotCallIsNamedAndTheGroupStaysUsable) {
  for (const Rank absent : {0, 2}) {
    std::atomic<int> started{0};
    withGroup(3, [&](Communicator& group) {
      std::vector<std::int64_t> word = {7};
      const bool isAbsent = group.rank() == absent;
      if (isAbsent) {
        for (Rank peer = 0; peer < 3; ++peer) {
          if (peer != absent) {
            expectOk(group.recv(viewOf(word), peer, 0));
          }
        }
      } else {
        ++started;
        await(started, 2);
      }
      const Status found = group.compileOp(turn(group.rank(), 3, 2), seconds(3)).status();
      if (!isAbsent) {
        expectOk(group.send(viewOf(word), absent, 0));
      }
      expectSays(found, StatusCode::kTimeout,
                 isAbsent ? std::string("was given up by rank") : fmt::format("rank {} did not arrive", absent));
      compileAndRun(group, 2);
    });
  }
}

// ---- without a group

std::vector<LocalSpec> specsOf(int n, std::int64_t rows) {
  std::vector<LocalSpec> specs;
  for (Rank rank = 0; rank < n; ++rank) {
    specs.push_back(turn(rank, n, rows, WhoPlans::kEachRank));
  }
  return specs;
}

TEST(PlannedOffline, IsThePlanOfTheGroupAndRunsOnceItHasOne) {
  withGroup(3, [](Communicator& group) {
    auto offline = planOffline(specsOf(3, 2), group.rank());
    ASSERT_TRUE(offline.isOk()) << offline.status().message();
    auto inGroup = group.compileOp(turn(group.rank(), 3, 2));
    ASSERT_TRUE(inGroup.isOk());
    EXPECT_EQ((*offline)->planBytes(), (*inGroup)->planBytes());
    expectSays((*offline)->run({}, {}).status(), StatusCode::kUnsupported,
               fmt::format("was planned for rank {} of 3", group.rank()));
    EXPECT_EQ((*offline)->bind({}, {}).status().code(), StatusCode::kUnsupported);
    auto read = readPlan((*offline)->planBytes());
    ASSERT_TRUE(read.isOk()) << read.status().message();
    EXPECT_EQ((*read)->planBytes(), (*offline)->planBytes());
    // One rank's op comes from bytes, the other ranks' does not: the same operation.
    auto first = group.attach(group.rank() == 1 ? **read : **offline);
    auto second = group.attach(**offline);
    ASSERT_TRUE(first.isOk()) << first.status().message();
    ASSERT_TRUE(second.isOk()) << second.status().message();
    runTurn(group, **second, 2);
    runTurn(group, **first, 2);
  });
}

TEST(PlannedOffline, AnAttachThatDoesNotFitIsOneErrorOnAllRanks) {
  std::vector<Sayings> sayings(4);
  withGroup(3, [&](Communicator& group) {
    const Rank rank = group.rank();
    auto own = planOffline(specsOf(3, 2), rank);
    auto larger = planOffline(specsOf(3, 3), rank);
    auto ofRank0 = planOffline(specsOf(3, 2), 0);
    const std::vector<std::int32_t> hosts = {0, 0, 1};
    auto onHosts = planOffline(specsOf(3, 2), rank, hosts);
    auto inGroup = group.compileOp(turn(rank, 3, 2));
    ASSERT_TRUE(own.isOk() && larger.isOk() && ofRank0.isOk() && onHosts.isOk() && inGroup.isOk());
    sayings[0].add(group.attach(rank == 2 ? **larger : **own).status());
    sayings[1].add(group.attach(**ofRank0).status());
    sayings[2].add(group.attach(rank == 2 ? **onHosts : **own).status());
    sayings[3].add(group.attach(rank == 1 ? **inGroup : **own).status());
    compileAndRun(group, 2);
  });
  expectSays(sayings[0].only(3), StatusCode::kMismatch,
             "all ranks must give the same, but ranks 0, 1 gave compile_op, plan");
  expectSays(sayings[1].only(3), StatusCode::kInvalidArgument,
             "rank 1: compile_op was planned for rank 0 of 3, and this is rank 1 of 3");
  expectSays(sayings[2].only(3), StatusCode::kMismatch, "for hosts");
  expectSays(sayings[3].only(3), StatusCode::kInvalidArgument, "rank 1: this op has a group already");
}

TEST(PlannedOffline, RefusesWhatCompileOpWouldRefuse) {
  std::vector<LocalSpec> specs = specsOf(3, 2);
  specs[1].inputs.clear();
  EXPECT_EQ(planOffline(specs, 0).status().code(), StatusCode::kGap);
  EXPECT_EQ(planOffline(specsOf(3, 2), 3).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(planOffline({}, 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(readPlan("no plan").status().code(), StatusCode::kInvalidArgument);
}

TEST(PlannedOffline, CountsCastElementsAsTheNarrowerTypeInStatsAndTraffic) {
  const std::vector<LocalTensor> whole = {{0, {100}, {{{{0}, {100}}, {0}}}}};
  for (const auto& [from, to] : {std::pair(DType::kFloat16, DType::kFloat32), {DType::kFloat32, DType::kFloat16}}) {
    LocalSpec spec;
    spec.tensors.push_back({.name = "", .shape = Dims{100}, .dtype = from, .outputDtype = to});
    spec.inputs = spec.outputs = whole;
    const auto op = planOffline({&spec, 1}, 0);
    ASSERT_TRUE(op.isOk()) << op.status().message();
    EXPECT_EQ((*op)->stats().bytesLocal, 200U);
    EXPECT_NE((*op)->explainJson().find("\"bytes\":200"), std::string::npos) << (*op)->explainJson();
  }
}

}  // namespace
}  // namespace shardwire::internal
