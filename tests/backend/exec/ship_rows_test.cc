// Faults put in where plans are made and where plans are taken: one and the same error on all ranks, and the group
// continues. Ranks are threads, each with a separate engine.
#include "backend/exec/ship_rows.h"

#include <fmt/format.h>

#include <array>
#include <new>

#include "backend/bootstrap/connect.h"
#include "backend/exec/exchange.h"
#include "backend/exec/exchange_all.h"
#include "backend/exec/handout.h"
#include "ops/plan/plan_row.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;

// Row slabs in, column slabs out.
LocalSpec specOfRank(Rank rank, int n) {
  constexpr std::int64_t rows = 2;
  const auto whole = rows * n;
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{whole, whole}, .dtype = DType::kInt64});
  spec.inputs.push_back(
      {.localShape = {rows, whole}, .slices = {{.slice = {{rank * rows, 0}, {rows, whole}}, .localOffset = {0, 0}}}});
  spec.outputs.push_back(
      {.localShape = {whole, rows}, .slices = {{.slice = {{0, rank * rows}, {whole, rows}}, .localOffset = {0, 0}}}});
  return spec;
}

// Runs `body` on ranks that are threads, each with a separate engine.
void withEngines(int n, const std::function<void(Engine&)>& body) {
  MemoryStore store;
  const Options options = testOptions();
  std::atomic<int> left{0};
  testing::runRanksAsThreads(n, [&](Rank rank) {
    Result<Peers> peers = connectPeers(store, rank, n, options, deadlineAfter(options.timeout), "rows");
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    const auto engine = Engine::create(std::move(*peers), rank, n, options, "rows").value();
    body(*engine);
    ++left;
    await(left, n);
    engine->shutdown();
  });
}

std::string rowOf(Rank rank, int n) {
  std::vector<LocalSpec> specs;
  for (Rank each = 0; each < n; ++each) {
    specs.push_back(specOfRank(each, n));
  }
  const GlobalSpec spec = mergeSpecs(specs).value();
  return encodeRow({specOf(spec, rank), hashOf({}, static_cast<std::size_t>(n)), redistribute(spec, rank).value()});
}

Status takeWhole(Engine& engine, std::string_view bytes) {
  const Result<PlanRow> row = decodeRow(bytes);
  SW_RETURN_IF_ERROR(row.status());
  return checkRow(*row, engine.facts().rank, engine.facts().worldSize,
                  specOfRank(engine.facts().rank, engine.facts().worldSize));
}

struct Fault {
  const char* name;
  std::function<Result<std::string>(Rank, std::string)> spoil;
  StatusCode code;
  const char* text;
};

TEST(Shipping, WhateverIsWrongWithOneRanksPlanIsOneErrorOnAllRanks) {
  const std::vector<Fault> faults = {
      {"one bit",
       [](Rank rank, std::string row) {
         row[row.size() / 2] = static_cast<char>(row[row.size() / 2] ^ (rank == 2 ? 4 : 0));
         return row;
       },
       StatusCode::kInternal, "reshape: rank 2 cannot use the plan that rank 0 made for it: a rank's plan of"},
      {"cut short", [](Rank rank, std::string row) { return rank == 1 ? row.substr(0, 40) : row; },
       StatusCode::kInternal, "rank 1 cannot use the plan that rank 0 made for it"},
      {"nothing", [](Rank rank, std::string row) { return rank == 3 ? std::string() : row; }, StatusCode::kInternal,
       "rank 3 cannot use the plan that rank 0 made for it: these 0 bytes are no rank's plan"},
      {"another rank's", [](Rank rank, std::string row) { return rank == 1 ? rowOf(2, 4) : row; },
       StatusCode::kInternal, "the plan is of rank 2 of 4, not of rank 1 of 4: compile it again"},
      {"rank 0 cannot plan",
       [](Rank, std::string) { return Result<std::string>(Status(StatusCode::kGap, "no input covers it")); },
       StatusCode::kGap, "no input covers it"},
      {"rank 0 cannot plan for the third",
       [](Rank rank, std::string row) {
         return rank == 3 ? Result<std::string>(Status(StatusCode::kUnsupported, "not for rank 3"))
                          : Result<std::string>(row);
       },
       StatusCode::kUnsupported, "not for rank 3"},
      {"rank 0 cannot plan for itself",
       [](Rank rank, std::string row) {
         return rank == 0 ? Result<std::string>(Status(StatusCode::kUnsupported, "not for me"))
                          : Result<std::string>(row);
       },
       StatusCode::kUnsupported, "not for me"},
      {"rank 0 has no memory", [](Rank, std::string) -> Result<std::string> { throw std::bad_alloc(); },
       StatusCode::kSystem, "reshape: rank 0 could not plan for all ranks: there is not enough memory"},
      {"rank 0's planner throws", [](Rank, std::string) -> Result<std::string> { throw std::logic_error("broken"); },
       StatusCode::kInternal, "reshape: rank 0 could not plan for all ranks: broken"},
  };
  std::vector<Sayings> sayings(faults.size());
  withEngines(4, [&](Engine& engine) {
    for (std::size_t i = 0; i < faults.size(); ++i) {
      const auto make = [&](Rank rank) { return faults[i].spoil(rank, rowOf(rank, 4)); };
      sayings[i].add(shipRows(engine, {}, "reshape", std::nullopt, make,
                              [&](std::string_view bytes) { return takeWhole(engine, bytes); }));
      // And the group is whole.
      const Status good = shipRows(
          engine, {}, "reshape", std::nullopt, [](Rank rank) { return Result<std::string>(rowOf(rank, 4)); },
          [&](std::string_view bytes) { return takeWhole(engine, bytes); });
      EXPECT_TRUE(good.isOk()) << good.message();
    }
  });
  for (std::size_t i = 0; i < faults.size(); ++i) {
    SCOPED_TRACE(faults[i].name);
    expectSays(sayings[i].only(4), faults[i].code, faults[i].text);
  }
}

// Rank 0's part of shipRows(), with any bytes as the answer to the other ranks, and as the verdict.
void shipBytes(Engine& engine, const std::string& answer, const std::string& verdict) {
  const int n = engine.facts().worldSize;
  const auto handout = std::make_shared<Handout>(n, 0);
  const auto verdicts = std::make_shared<Exchange>(verdict, n, 0);
  handout->fingerprint = exchangeFingerprint("compile_op: plans");
  verdicts->fingerprint = exchangeFingerprint("compile_op: verdicts");
  const std::array<std::shared_ptr<Activity>, 2> activities = {handout, verdicts};
  for (const auto& activity : activities) {
    activity->description = std::make_shared<const std::string>("rank 0's part");
  }
  ASSERT_TRUE(engine.submit(activities, Duration::zero(), {.name = "compile_op"}).isOk());
  engine.locked([&](const GroupState&) {
    for (Rank to = 1; to < n; ++to) {
      handout->give(to, answer);
    }
  });
  const Status met = verdicts->wait(kNoDeadline);
  EXPECT_TRUE(met.isOk()) << met.message();
}

TEST(Shipping, BytesWithoutAStatusAreAnErrorThatNamesTheirRank) {
  struct Case {
    std::string answer;
    std::string verdict;
    const char* text;
  };
  const std::string ok(1, '\0');
  const std::string unknown(1, static_cast<char>(kNumStatusCodes));
  const std::string good = ok + rowOf(1, 2);
  const std::array<Case, 4> cases = {{{unknown + good, ok, "what rank 0 sent in place of this rank's plan"},
                                      {"", ok, "what rank 0 sent in place of this rank's plan"},
                                      {good, unknown, "reshape: what rank 0 says of its plan"},
                                      {good, "", "reshape: what rank 0 says of its plan"}}};
  withEngines(2, [&](Engine& engine) {
    for (const Case& each : cases) {
      if (engine.facts().rank == 0) {
        shipBytes(engine, each.answer, each.verdict);
      } else {
        const Status found = shipRows(
            engine, {}, "reshape", std::nullopt, [](Rank rank) { return Result<std::string>(rowOf(rank, 2)); },
            [&](std::string_view bytes) { return takeWhole(engine, bytes); });
        expectSays(found, StatusCode::kInternal, each.text);
      }
    }
  });
}

TEST(Shipping, ARank0ThatPlansForTooLongIsNamedAndTheGroupStaysUsable) {
  std::atomic<int> given{0};
  withEngines(3, [&](Engine& engine) {
    const auto make = [&](Rank rank) -> Result<std::string> {
      await(given, 2);  // until the other ranks have their errors
      return rowOf(rank, 3);
    };
    const Status found = shipRows(engine, {}, "reshape", milliseconds(200), make,
                                  [&](std::string_view bytes) { return takeWhole(engine, bytes); });
    ++given;
    EXPECT_EQ(found.code(), StatusCode::kTimeout) << found.message();
    EXPECT_NE(found.message().find("reshape: rank 0 plans for all and sends each rank its plan"), std::string::npos)
        << found.message();
    const Status good = shipRows(
        engine, {}, "again", std::nullopt, [](Rank rank) { return Result<std::string>(rowOf(rank, 3)); },
        [&](std::string_view bytes) { return takeWhole(engine, bytes); });
    EXPECT_TRUE(good.isOk()) << good.message();
  });
}

}  // namespace
}  // namespace shardwire::internal
