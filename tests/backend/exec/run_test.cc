// Runs of plans between ranks of one thread over fake links: the bytes moved by every path, the frames in the lanes,
// and the errors about frames of a broken or a different peer.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <shared_mutex>
#include <string>
#include <vector>

#include "backend/exec/plan_run.h"
#include "backend/exec/short_run.h"
#include "ops/plan/redistribute.h"
#include "shardwire/staging.h"
#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

using Values = std::vector<std::int64_t>;

TensorView viewOf(Values& values, const Dims& shape) {
  return TensorView::contiguous(values.data(), DType::kInt64, shape);
}

// Rank r's part of a global int64 tensor.
struct Part {
  Slice in;
  Slice out;
};

std::vector<std::shared_ptr<const Plan>> plansOf(const Dims& shape, const std::vector<Part>& parts,
                                                 ReduceOp reduction) {
  std::vector<LocalSpec> specs;
  for (const Part& part : parts) {
    LocalSpec spec;
    spec.tensors = {{"", shape, DType::kInt64, reduction}};
    spec.inputs = {{0, part.in.shape, {{part.in, Dims::filled(shape.size(), 0)}}}};
    spec.outputs = {{0, part.out.shape, {{part.out, Dims::filled(shape.size(), 0)}}}};
    specs.push_back(spec);
  }
  const Result<GlobalSpec> global = mergeSpecs(specs);
  EXPECT_TRUE(global.isOk()) << global.status().message();
  std::vector<std::shared_ptr<const Plan>> plans;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    Result<Plan> plan = redistribute(*global, static_cast<Rank>(rank));
    EXPECT_TRUE(plan.isOk()) << plan.status().message();
    plans.push_back(std::make_shared<const Plan>(std::move(*plan)));
  }
  return plans;
}

// A group in which each rank runs a plan.
template <typename R>
struct Ranks {
  explicit Ranks(const std::vector<std::shared_ptr<const Plan>>& plans)
      : group(static_cast<int>(plans.size())), outputs(plans.size()) {
    for (std::size_t r = 0; r < plans.size(); ++r) {
      const Plan& plan = *plans[r];
      inputs.emplace_back(static_cast<std::size_t>(numElements(plan.inputs[0].shape)));
      std::iota(inputs[r].begin(), inputs[r].end(), static_cast<std::int64_t>(1000 * r));
      outputs[r].assign(static_cast<std::size_t>(numElements(plan.outputs[0].shape)), -1);
      runs.push_back(std::make_shared<R>(plans[r]));
    }
    start(plans, 5);
  }
  void start(const std::vector<std::shared_ptr<const Plan>>& plans, std::uint64_t seq) {
    for (std::size_t r = 0; r < plans.size(); ++r) {
      const TensorView in = viewOf(inputs[r], plans[r]->inputs[0].shape);
      const TensorView out = viewOf(outputs[r], plans[r]->outputs[0].shape);
      runs[r]->prepare(std::span(&in, 1), std::span(&out, 1));
      group[static_cast<Rank>(r)].start(*runs[r], seq);
    }
  }
  void run() { group.run(runs); }
  FakeRank& rank(Rank r) { return group[r]; }
  R& of(Rank r) { return *runs[static_cast<std::size_t>(r)]; }
  void step(Rank r) { group[r].step(of(r)); }
  OperationTag tag() { return {5, runs[0]->fingerprint}; }

  FakeGroup group;
  std::vector<Values> inputs;
  std::vector<Values> outputs;
  std::vector<std::shared_ptr<R>> runs;
};

// n elements on each of two ranks, summed on both.
std::vector<std::shared_ptr<const Plan>> sumPlans(std::int64_t n) {
  const Slice all{{0}, {n}};
  return plansOf({n}, {{all, all}, {all, all}}, ReduceOp::kSum);
}
// Each of two ranks holds a band of rows of a square and wants a band of columns.
std::vector<std::shared_ptr<const Plan>> turnPlans(std::int64_t n) {
  const std::int64_t h = n / 2;
  return plansOf({n, n}, {{{{0, 0}, {h, n}}, {{0, 0}, {n, h}}}, {{{h, 0}, {h, n}}, {{0, h}, {n, h}}}}, ReduceOp::kNone);
}
void expectTurned(const Ranks<PlanRun>& ranks, std::int64_t n) {
  const std::int64_t h = n / 2;
  for (std::int64_t r = 0; r < 2; ++r) {
    for (std::int64_t row = 0; row < n; ++row) {
      for (std::int64_t col = 0; col < h; ++col) {
        const std::int64_t expected = 1000 * (row / h) + row % h * n + r * h + col;
        ASSERT_EQ(ranks.outputs[static_cast<std::size_t>(r)][static_cast<std::size_t>(row * h + col)], expected)
            << r << ' ' << row << ' ' << col;
      }
    }
  }
}
void expectSummed(const std::vector<Values>& outputs) {
  for (const Values& values : outputs) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(values[i], 1000 + 2 * static_cast<std::int64_t>(i));
    }
  }
}

void expectFailure(const FakeRank& rank, const std::string& words) {
  EXPECT_EQ(rank.failure.code(), StatusCode::kInternal);
  EXPECT_NE(rank.failure.message().find("rank 1 "), std::string::npos) << rank.failure.message();
  EXPECT_NE(rank.failure.message().find(words), std::string::npos) << rank.failure.message();
}

// ---- short runs

TEST(ShortRun, SendsOneFrameToEachPeerAndNothingElse) {
  Ranks<ShortRun> ranks(sumPlans(4));
  ranks.step(0);
  ASSERT_EQ(ranks.rank(0).to(1).sent(Lane::kBulk).size(), 1U);
  const auto staged = readFrame<StagedFrame>(ranks.rank(0).to(1).sent(Lane::kBulk).front());
  ASSERT_TRUE(staged.has_value());
  EXPECT_EQ(staged->operation.seq, 5U);
  EXPECT_EQ(staged->isAll, 1U);
  EXPECT_EQ(staged->payload.size(), 4 * sizeof(std::int64_t));
  EXPECT_FALSE(ranks.of(0).finished());
  ranks.run();
  expectSummed(ranks.outputs);
  ranks.group.forEachLink([](FakeConnection& link) {
    EXPECT_TRUE(link.sent(Lane::kBulk).empty());
    EXPECT_TRUE(link.sent(Lane::kControl).empty());
  });
}

TEST(ShortRun, HoldsBackLaterOperationsWhileThereIsNoRoom) {
  Ranks<ShortRun> ranks(sumPlans(4));
  ranks.rank(0).to(1).maxFrames = 0;
  ranks.step(0);
  EXPECT_TRUE(ranks.rank(0).blocked[1]);
  ranks.rank(0).to(1).maxFrames = 1;
  ranks.run();
  expectSummed(ranks.outputs);
}

TEST(ShortRun, MovesInsideTheCallWhatIsThere) {
  Ranks<ShortRun> ranks(sumPlans(4));
  EXPECT_FALSE(ranks.of(0).moveNow(3)) << "the peer sent nothing";
  ASSERT_EQ(ranks.rank(0).to(1).sent(Lane::kBulk).size(), 1U);
  EXPECT_EQ(ranks.outputs[0][0], -1);
  EXPECT_TRUE(ranks.of(1).moveNow(1));
  EXPECT_TRUE(ranks.of(1).finished());
  ranks.step(0);  // goes on from there: sends nothing again
  EXPECT_TRUE(ranks.of(0).finished());
  EXPECT_TRUE(ranks.rank(0).to(1).sent(Lane::kBulk).empty());
  expectSummed(ranks.outputs);
}

TEST(ShortRun, MovesNothingInsideTheCallWithoutRoom) {
  Ranks<ShortRun> ranks(sumPlans(4));
  ranks.rank(0).to(1).maxFrames = 0;
  ranks.step(1);
  EXPECT_FALSE(ranks.of(0).moveNow(3));
  EXPECT_EQ(ranks.rank(1).to(0).sent(Lane::kBulk).size(), 1U) << "outputs may be inputs: first all is sent";
  ranks.rank(0).to(1).maxFrames = 1;
  ranks.run();
  expectSummed(ranks.outputs);
}

TEST(ShortRun, LeavesFramesOfOtherOperationsAlone) {
  Ranks<ShortRun> ranks(sumPlans(4));
  ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frameOf(StagedFrame{{4, 1}, 512, 1}, bytesOf("earlier")));
  ranks.step(0);
  EXPECT_TRUE(ranks.rank(0).failure.isOk());
  EXPECT_FALSE(ranks.of(0).finished());
}

TEST(ShortRun, AsksAPeerThatDoesSomethingElse) {
  const Bytes payload(4 * sizeof(std::int64_t));
  for (const bool isOtherSize : {false, true}) {
    Ranks<ShortRun> ranks(sumPlans(4));
    const OperationTag tag{5, ranks.tag().fingerprint + (isOtherSize ? 0 : 1)};
    ranks.rank(1)
        .to(0)
        .sent(Lane::kBulk)
        .push_back(frameOf(StagedFrame{tag, 512, 1}, Payload(payload).subspan(isOtherSize ? 1 : 0)));
    ranks.step(0);
    ASSERT_EQ(ranks.rank(0).desyncs.size(), 1U) << isOtherSize;
    EXPECT_EQ(ranks.rank(0).desyncs[0], (std::pair<Rank, std::uint64_t>(1, 5)));
    EXPECT_EQ(ranks.outputs[0][0], -1);
  }
}

TEST(ShortRun, NamesThePeerOfAFrameThatCannotBe) {
  const auto failureAfter = [](const std::function<Bytes(const OperationTag&)>& make, Lane lane) {
    Ranks<ShortRun> ranks(sumPlans(4));
    ranks.rank(1).to(0).sent(lane).push_back(make(ranks.tag()));
    ranks.step(0);
    return ranks.rank(0).failure.message();
  };
  const Bytes sound = frameOf(StagedFrame{{5, 1}, 512, 1}, bytesOf("12345678"));
  for (std::size_t size = 1; size < sound.size(); ++size) {
    const std::string message = failureAfter(
        [&](const auto&) { return Bytes(sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size)); },
        Lane::kBulk);
    EXPECT_NE(
        message.find("rank 1 sent a frame of " + std::to_string(size) + " bytes on the bulk lane that cannot be read"),
        std::string::npos)
        << message;
  }
  EXPECT_NE(failureAfter([](const auto& tag) { return frameOf(AckFrame{tag}); }, Lane::kBulk).find("rank 1"),
            std::string::npos);
  EXPECT_NE(failureAfter(
                [](const auto& tag) {
                  return frameOf(StagedFrame{tag, 256, 1}, bytesOf("x"));
                },
                Lane::kBulk)
                .find("segments of 256 bytes there, 512 here"),
            std::string::npos);
  EXPECT_NE(
      failureAfter([](const auto& tag) { return frameOf(AckFrame{tag}); }, Lane::kControl)
          .find("rank 1 sent a frame (kind 2: ack) that does not fit the test's operation: short operations need none"),
      std::string::npos);
}

// ---- runs of plans, by path

// Rank 0 sums one half with rank 1 and the other half with rank 2, which is late. Rank 1 may leave meanwhile.
TEST(PlanRun, NeedsNoPeerWhoseBytesWereAllCombined) {
  const Slice all{{0}, {8}};
  const Slice low{{0}, {4}};
  const Slice high{{4}, {4}};
  Ranks<PlanRun> ranks(plansOf({8}, {{all, all}, {low, low}, {high, high}}, ReduceOp::kSum));
  ranks.step(1);
  EXPECT_TRUE(ranks.of(0).needs(1));
  ranks.step(0);
  ranks.step(0);
  EXPECT_TRUE(ranks.rank(1).to(0).sent(Lane::kBulk).empty());
  EXPECT_FALSE(ranks.of(0).needs(1));
  EXPECT_TRUE(ranks.of(0).needs(2));
  EXPECT_EQ(ranks.of(0).waitingFor(), "rank 2 did not arrive");
  ranks.run();
  EXPECT_EQ(ranks.outputs[0], (Values{1000, 1002, 1004, 1006, 2004, 2006, 2008, 2010}));
}

TEST(PlanRun, DistinguishesPeersByTheirFrames) {
  const Slice all{{0}, {8}};
  const Slice low{{0}, {4}};
  const Slice high{{4}, {4}};
  Ranks<PlanRun> ranks(plansOf({8}, {{all, all}, {low, low}, {high, high}}, ReduceOp::kSum));
  ranks.step(1);
  EXPECT_EQ(ranks.of(0).waitingFor(), "rank 2 did not arrive; rank 1 arrived but did not finish");
}

// The peer died between two frames: the bytes cannot be read without the posts, which do not come any more.
TEST(PlanRun, NeedsAPeerWhoseStagedBytesCameWithoutTheirPosts) {
  const Slice low{{0}, {4}};
  const Slice high{{4}, {4}};
  for (const std::uint32_t isAll : {0u, 1u}) {
    Ranks<PlanRun> ranks(plansOf({8}, {{low, high}, {high, high}}, ReduceOp::kNone));
    EXPECT_TRUE(ranks.of(0).needs(1));
    ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frameOf(StagedFrame{ranks.tag(), 512, isAll}, Bytes(32)));
    EXPECT_EQ(ranks.of(0).needs(1), isAll == 0) << isAll;
  }
}

// Likewise with all staged bytes there, while the peer's memory is still to be fetched.
TEST(PlanRun, NeedsAPeerWhoseMemoryIsFetchedBesideStagedBytes) {
  const Slice low{{0}, {4}};
  const Slice high{{4}, {4}};
  Ranks<PlanRun> ranks(plansOf({8}, {{low, high}, {high, high}}, ReduceOp::kNone));
  ranks.group.forEachLink([](FakeConnection& link) {
    link.reach = Reach::kFetch;
    link.limits.isWire = true;
  });
  ranks.step(1);
  ranks.step(0);
  ASSERT_EQ(ranks.rank(0).to(1).fetches.size(), 1U);
  ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frameOf(StagedFrame{ranks.tag(), 512, 0}, Bytes(32)));
  EXPECT_TRUE(ranks.of(0).needs(1));
}

TEST(PlanRun, MovesEverythingInSegmentsThroughALaneOfOneFrame) {
  Ranks<PlanRun> ranks(turnPlans(24));
  ranks.group.forEachLink([](FakeConnection& link) { link.maxFrames = 1; });
  ranks.run();
  expectTurned(ranks, 24);
  ranks.group.forEachLink([](FakeConnection& link) { EXPECT_TRUE(link.sent(Lane::kBulk).empty()); });
}

// A caller whose poll moved nothing may sleep.
TEST(PlanRun, SaysThatASegmentMovedWhenTheNextSegmentHasNotCome) {
  Ranks<PlanRun> ranks(turnPlans(24));
  for (int i = 0; i < 4; ++i) {
    ranks.step(0);  // the own sends and copies
  }
  std::vector<bool>& blocked = ranks.rank(0).blocked;
  EXPECT_FALSE(ranks.of(0).step(blocked));
  ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frameOf(StagedFrame{ranks.tag(), 512, 1}, Bytes(384)));
  EXPECT_TRUE(ranks.of(0).step(blocked));
  EXPECT_FALSE(ranks.of(0).step(blocked));
}

// Of runs of 96 bytes.
TEST(PlanRun, FetchesAsOnePieceWhatItsOwnShortRunsWouldCut) {
  const std::int64_t n = 24, h = 12;
  const auto plans =
      plansOf({n, n}, {{{{0, 0}, {n, h}}, {{0, 0}, {h, n}}}, {{{0, h}, {n, h}}, {{h, 0}, {h, n}}}}, ReduceOp::kNone);
  for (const std::size_t limit : {96, 97}) {
    Ranks<PlanRun> ranks(plans);
    ranks.group.forEachLink([&](FakeConnection& link) {
      link.reach = Reach::kFetch;
      link.limits = {.isWire = true, .minLocalRunBytes = limit};
    });
    ranks.step(1);
    ranks.step(0);
    ASSERT_EQ(ranks.rank(0).to(1).fetches.size(), 1U);
    EXPECT_EQ(ranks.rank(0).to(1).fetches.front().runs.size(), limit == 96 ? 12U : 1U);
    ranks.run();
    for (std::int64_t i = 0; i < h * n; ++i) {
      const std::int64_t row = i / n, col = i % n;
      ASSERT_EQ(ranks.outputs[0][static_cast<std::size_t>(i)], 1000 * (col / h) + row * h + col % h) << i;
    }
  }
}

// Counts bytes of host copies, which are ready from the beginning.
class CountedStaging final : public Staging {
 public:
  void attach(std::function<void()>) override {}
  void willWrite(const std::byte*, std::size_t, std::size_t bytes) override { announced += bytes; }
  bool isReady(const std::byte*, std::size_t) const override { return true; }
  bool allReady() const override { return true; }
  void wrote(const std::byte*, std::size_t, std::size_t bytes) override { written += bytes; }

  std::size_t announced = 0;
  std::size_t written = 0;
};

TEST(PlanRun, ReportsEachWriteToAHostCopy) {
  for (const Reach reach : {Reach::kNone, Reach::kDirect, Reach::kCopy, Reach::kFetch}) {
    Ranks<PlanRun> ranks(turnPlans(24));
    ranks.group.forEachLink([&](FakeConnection& link) {
      link.reach = reach;
      link.limits.isWire = reach == Reach::kFetch;
    });
    CountedStaging staging;
    ranks.of(0).stage(&staging);
    ranks.run();
    expectTurned(ranks, 24);
    EXPECT_EQ(staging.announced, 24 * 12 * sizeof(std::int64_t));
    EXPECT_EQ(staging.written, staging.announced) << static_cast<int>(reach);
  }
}

TEST(PlanRun, ReadsWhatThePeerPostsAndAcknowledges) {
  for (const Reach reach : {Reach::kDirect, Reach::kCopy, Reach::kFetch}) {
    Ranks<PlanRun> ranks(turnPlans(24));
    ranks.group.forEachLink([&](FakeConnection& link) {
      link.reach = reach;
      link.limits.isWire = reach == Reach::kFetch;
    });
    ranks.step(0);
    EXPECT_TRUE(ranks.rank(0).to(1).sent(Lane::kBulk).empty()) << static_cast<int>(reach);
    ASSERT_EQ(ranks.rank(0).to(1).sent(Lane::kControl).size(), 1U);
    const auto post = readFrame<PostFrame>(ranks.rank(0).to(1).sent(Lane::kControl).front());
    ASSERT_TRUE(post.has_value());
    EXPECT_EQ(post->edgeBytes, 12 * 12 * sizeof(std::int64_t));
    EXPECT_EQ(post->numSlots, 1U);
    EXPECT_FALSE(ranks.of(0).finished());
    ranks.run();
    expectTurned(ranks, 24);
    EXPECT_EQ(ranks.rank(0).to(1).numConcealed, reach == Reach::kFetch ? 1 : 0);
  }
}

TEST(PlanRun, IsNotOverBeforeItsReaderAcknowledges) {
  Ranks<PlanRun> ranks(turnPlans(24));
  ranks.group.forEachLink([](FakeConnection& link) { link.reach = Reach::kDirect; });
  ranks.step(1);
  ranks.step(0);  // rank 0 has read all of rank 1's
  ASSERT_EQ(ranks.rank(0).to(1).sent(Lane::kControl).size(), 2U);
  EXPECT_TRUE(readFrame<AckFrame>(ranks.rank(0).to(1).sent(Lane::kControl).back()).has_value());
  ranks.step(0);
  EXPECT_FALSE(ranks.of(0).finished());
  EXPECT_TRUE(ranks.of(0).needs(1));
  ranks.run();
  expectTurned(ranks, 24);
}

TEST(PlanRun, CombinesWhatIsStagedPostedOrCopied) {
  for (const Reach reach : {Reach::kNone, Reach::kDirect, Reach::kCopy}) {
    Ranks<PlanRun> ranks(sumPlans(500));
    ranks.group.forEachLink([&](FakeConnection& link) { link.reach = reach; });
    ranks.run();
    expectSummed(ranks.outputs);
  }
}

// A peer of this process has failed: its callers may have freed the memory.
TEST(PlanRun, CombinesNothingOfWithdrawnMemoryOfItsProcess) {
  std::shared_mutex readers;
  Ranks<PlanRun> ranks(sumPlans(500));
  ranks.group.forEachLink([&](FakeConnection& link) {
    link.reach = Reach::kDirect;
    link.readers = &readers;
  });
  ranks.rank(0).to(1).withdrawn = true;
  ranks.step(1);
  ranks.step(0);
  EXPECT_EQ(ranks.outputs[0], Values(500, -1));
  ranks.rank(0).to(1).withdrawn = false;
  ranks.run();
  expectSummed(ranks.outputs);
}

// Whether rank 0 packs bytes for rank 1, of memory that rank 1 can read by copies, under these limits.
bool isStaged(const std::vector<std::shared_ptr<const Plan>>& plans, const ReadLimits& limits,
              bool hasCorePerRank = true) {
  Ranks<PlanRun> ranks(plans);
  ranks.group.forEachLink([&](FakeConnection& link) {
    link.reach = Reach::kCopy;
    link.limits = limits;
  });
  ranks.rank(0).context.hasCorePerRank = ranks.rank(1).context.hasCorePerRank = hasCorePerRank;
  ranks.step(0);
  const bool staged = !ranks.rank(0).to(1).sent(Lane::kBulk).empty();
  ranks.run();
  return staged;
}

TEST(PlanRun, StagesWhatFlowsOneWayAndWhatIsCombined) {
  const Slice all{{0}, {500}};
  const Slice most{{0}, {499}};
  const Slice first{{0}, {1}};
  const Slice last{{499}, {1}};
  const std::size_t bytes = 499 * sizeof(std::int64_t);
  const auto copies = plansOf({500}, {{most, first}, {last, all}}, ReduceOp::kNone);  // one way, to rank 1
  EXPECT_FALSE(isStaged(copies, {}));
  EXPECT_FALSE(isStaged(copies, {.minCombinedBytes = bytes + 9}));
  EXPECT_TRUE(isStaged(copies, {.stagesOneWay = true}));
  EXPECT_FALSE(isStaged(copies, {.stagesOneWay = true}, false));
  // The same bytes to each of two peers.
  const Slice front{{0}, {498}};
  const auto spread = plansOf({500}, {{front, first}, {{{498}, {1}}, all}, {last, all}}, ReduceOp::kNone);
  EXPECT_FALSE(isStaged(spread, {.stagesOneWay = true}));

  const auto sums = plansOf({500}, {{all, first}, {all, all}}, ReduceOp::kSum);  // a sum on rank 1
  EXPECT_FALSE(isStaged(sums, {.minCombinedBytes = bytes}));
  EXPECT_TRUE(isStaged(sums, {.stagesOneWay = true}));
  EXPECT_FALSE(isStaged(sums, {.stagesOneWay = true}, false));

  const auto both = sumPlans(500);  // as many bytes each way
  EXPECT_FALSE(isStaged(both, {.minCombinedBytes = bytes, .stagesOneWay = true}));
  EXPECT_TRUE(isStaged(both, {.minCombinedBytes = bytes + 9}));
  EXPECT_TRUE(isStaged(both, {.minCombinedBytes = bytes + 9}, false));
  EXPECT_TRUE(isStaged(both, {.maxEdgeBytes = bytes}));
  EXPECT_FALSE(isStaged(both, {.maxEdgeBytes = bytes}, false));
  EXPECT_FALSE(isStaged(both, {.maxEdgeBytes = bytes + 9}));
  EXPECT_FALSE(isStaged(turnPlans(24), {.minCombinedBytes = bytes, .stagesOneWay = true}));
}

TEST(PlanRun, StagesATensorWhoseRunsAreShort) {
  const std::size_t bytes = 12 * sizeof(std::int64_t);  // of each run
  EXPECT_FALSE(isStaged(turnPlans(24), {.minRunBytes = bytes}));
  EXPECT_TRUE(isStaged(turnPlans(24), {.minRunBytes = bytes + 1}));
}

// Rank 0's first runs of a plan go both ways, the first one by the rule (which reads, here).
TEST(PlanRun, MeasuresReadsAndStaging) {
  const auto stagedRuns = [](const ReadLimits& limits, bool hasCorePerRank) {
    const auto plans = sumPlans(500);
    Ranks<PlanRun> ranks(plans);
    ranks.group.forEachLink([&](FakeConnection& link) {
      link.reach = Reach::kCopy;
      link.limits = limits;
    });
    ranks.rank(0).context.hasCorePerRank = ranks.rank(1).context.hasCorePerRank = hasCorePerRank;
    std::vector<bool> staged;
    for (std::uint64_t seq = 5; seq <= 16; ++seq) {
      ranks.start(plans, seq);
      ranks.step(0);
      staged.push_back(!ranks.rank(0).to(1).sent(Lane::kBulk).empty());
      ranks.run();
      expectSummed(ranks.outputs);
    }
    EXPECT_FALSE(staged.front());
    return std::count(staged.begin(), staged.end(), true);
  };
  // Two runs each way at least; then the times decide.
  EXPECT_GE(stagedRuns({.isMeasured = true}, true), 2);
  EXPECT_LE(stagedRuns({.isMeasured = true}, true), 10);
  EXPECT_EQ(stagedRuns({.isMeasured = true}, false), 0);
  EXPECT_EQ(stagedRuns({}, true), 0);
}

TEST(PlanRun, ThatIsShortIsUnderstoodByAShortRun) {
  const auto plans = sumPlans(4);
  Ranks<PlanRun> ranks(plans);
  ranks.group.forEachLink([](FakeConnection& link) { link.reach = Reach::kDirect; });
  ranks.rank(0).context.inlineBytes = ranks.rank(1).context.inlineBytes = 64;
  const TensorView in = viewOf(ranks.inputs[1], {4});
  const TensorView out = viewOf(ranks.outputs[1], {4});
  const auto other = std::make_shared<ShortRun>(plans[1]);
  other->prepare(std::span(&in, 1), std::span(&out, 1));
  ranks.rank(1).start(*other, 5);
  std::vector<std::shared_ptr<Activity>> both = {ranks.runs[0], other};
  ranks.group.run(both);
  expectSummed(ranks.outputs);
}

// The lane has room for the first of two boxes. A ShortRun of the peer takes one frame, and nothing else.
TEST(PlanRun, SendsAShortEdgeInOneFrameOrNotYet) {
  const Slice all{{0}, {8}};
  const Slice low{{0}, {4}};
  const Slice high{{4}, {4}};
  Ranks<PlanRun> ranks(plansOf({8}, {{all, low}, {low, all}, {high, high}}, ReduceOp::kSum));
  ranks.rank(0).context.inlineBytes = 8 * sizeof(std::int64_t);
  FakeConnection& link = ranks.rank(0).to(1);
  link.room = kHeadBytes<StagedFrame> + 4 * sizeof(std::int64_t);
  ranks.step(0);
  EXPECT_TRUE(link.sent(Lane::kBulk).empty());
  link.room = 1024;
  ranks.step(0);
  EXPECT_EQ(link.sent(Lane::kBulk).size(), 1U);
  ranks.run();
  EXPECT_EQ(ranks.outputs[1], (Values{1000, 1002, 1004, 1006, 2004, 2006, 2008, 2010}));
}

TEST(PlanRun, RunsAgain) {
  Ranks<PlanRun> ranks(turnPlans(24));
  for (std::uint64_t seq = 6; seq < 9; ++seq) {
    ranks.run();
    expectTurned(ranks, 24);
    for (Rank r = 0; r < 2; ++r) {
      std::fill(ranks.outputs[static_cast<std::size_t>(r)].begin(), ranks.outputs[static_cast<std::size_t>(r)].end(),
                -1);
      ranks.of(r).prepareAgain();
      ranks.rank(r).start(ranks.of(r), seq);
    }
  }
}

// ---- runs of plans, and broken peers

struct Posted {
  Reach reach = Reach::kDirect;
  Dims byteStrides = {24 * 8, 8};
  std::uint32_t firstSlot = 0;
  std::uint32_t numSlots = 1;
  std::uint64_t address = 0;  // 0: as exposed
};

// The status of rank 0 after rank 1 posted `posted`.
Status failureOfPost(const Posted& posted, int times = 1) {
  Ranks<PlanRun> ranks(turnPlans(24));
  FakeConnection& link = ranks.rank(1).to(0);
  const auto address = reinterpret_cast<std::uint64_t>(ranks.inputs[1].data());
  link.exposed.push_back({address, ranks.inputs[1].size() * sizeof(std::int64_t)});
  Bytes slots;
  for (std::uint32_t i = 0; i < posted.numSlots; ++i) {
    Bytes slot(postedSlotBytes(posted.byteStrides.size()));
    writePostedSlot(
        slot.data(),
        {posted.reach, {kFirstExposure, posted.address == 0 ? address : posted.address}, posted.byteStrides});
    slots.insert(slots.end(), slot.begin(), slot.end());
  }
  for (int i = 0; i < times; ++i) {
    link.sent(Lane::kControl)
        .push_back(
            frameOf(PostFrame{ranks.tag(), 12 * 12 * sizeof(std::int64_t), posted.firstSlot, posted.numSlots}, slots));
  }
  ranks.step(0);
  return ranks.rank(0).failure;
}

TEST(PlanRun, RefusesAPostThatLeadsOutOfThePeersMemory) {
  const std::string words = "rank 1 sent a frame (kind 1: post) that does not fit the test's operation";
  EXPECT_TRUE(failureOfPost({}).isOk()) << failureOfPost({}).message();
  // Fewer or more dimensions than the plan reads, steps that are too long, negative, or overflow, and unexposed memory.
  EXPECT_EQ(failureOfPost({.byteStrides = {8}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {24 * 8, 8, 8}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {26 * 8, 8}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {-8, 8}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {std::int64_t{1} << 61, 8}}).message(), words);
  EXPECT_EQ(failureOfPost({.byteStrides = {std::int64_t{1} << 57, 8}}).message(), words);
  EXPECT_EQ(failureOfPost({.address = 64}).message(), words);
}

TEST(PlanRun, RefusesAPostAtTheEndOfTheAddresses) {
  const std::string words = "rank 1 sent a frame (kind 1: post) that does not fit the test's operation";
  // The strides 24 * 8 and 8 lead over less than 4,600 bytes.
  for (const Reach reach : {Reach::kCopy, Reach::kFetch}) {
    EXPECT_EQ(failureOfPost({.reach = reach, .address = ~std::uint64_t{0} - 3000}).message(), words);
    EXPECT_NE(failureOfPost({.reach = reach, .address = ~std::uint64_t{0} - 20000}).message(), words);
  }
}

TEST(PlanRun, RefusesSlotsThatItDoesNotHave) {
  const std::string words = "rank 1 sent a frame (kind 1: post) that does not fit the test's operation";
  EXPECT_EQ(failureOfPost({.firstSlot = 1}).message(), words);
  EXPECT_EQ(failureOfPost({.numSlots = 2}).message(), words);
  EXPECT_EQ(failureOfPost({}, 2).message(), words);
}

// The first staged bytes say that all bytes are staged.
TEST(PlanRun, RefusesAPostAfterStagedBytesThatAnnouncedNone) {
  Ranks<PlanRun> ranks(turnPlans(24));
  ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frameOf(StagedFrame{ranks.tag(), 512, 1}, Bytes(384)));
  ranks.step(0);
  EXPECT_TRUE(ranks.rank(0).failure.isOk());
  const PostedSlot posted{.reach = Reach::kNone, .byteStrides = {24 * 8, 8}};
  Bytes slot(postedSlotBytes(posted.byteStrides.size()));
  writePostedSlot(slot.data(), posted);
  ranks.rank(1)
      .to(0)
      .sent(Lane::kControl)
      .push_back(frameOf(PostFrame{ranks.tag(), 12 * 12 * sizeof(std::int64_t), 0, 1}, slot));
  ranks.step(0);
  expectFailure(ranks.rank(0), "sent a frame (kind 1: post) that does not fit");
}

TEST(PlanRun, RefusesAnAcknowledgementThatIsNotDue) {
  for (const bool isPosted : {false, true}) {
    Ranks<PlanRun> ranks(turnPlans(24));
    if (isPosted) {
      ranks.group.forEachLink([](FakeConnection& link) { link.reach = Reach::kDirect; });
      ranks.step(0);
      ranks.rank(1).to(0).sent(Lane::kControl).push_back(frameOf(AckFrame{ranks.tag()}));
      ranks.step(0);
      EXPECT_TRUE(ranks.rank(0).failure.isOk());
    }
    ranks.rank(1).to(0).sent(Lane::kControl).push_back(frameOf(AckFrame{ranks.tag()}));
    ranks.step(0);
    expectFailure(ranks.rank(0), "sent a frame (kind 2: ack) that does not fit");
  }
}

// Checks rank 0 after rank 1 put the frames of `make` into the bulk lane.
template <typename Make>
void withStaged(Make make, const std::function<void(Ranks<PlanRun>&)>& check) {
  Ranks<PlanRun> ranks(turnPlans(24));
  for (const Bytes& frame : make(ranks.tag())) {
    ranks.rank(1).to(0).sent(Lane::kBulk).push_back(frame);
  }
  for (int i = 0; i < 4; ++i) {
    ranks.step(0);
  }
  check(ranks);
}

TEST(PlanRun, NamesThePeerOfStagedBytesThatCannotBe) {
  using Frames = std::vector<Bytes>;
  const Bytes segment(12 * 8 * 5);
  withStaged(
      [&](const OperationTag& tag) {
        return Frames{frameOf(StagedFrame{tag, 512, 1})};
      },
      [](auto& ranks) { expectFailure(ranks.rank(0), "(kind 11: staged bytes) that does not fit"); });
  withStaged(
      [&](const OperationTag& tag) {
        return Frames{frameOf(StagedFrame{tag, 256, 1}, segment)};
      },
      [](auto& ranks) { expectFailure(ranks.rank(0), "SHARDWIRE_RING_BYTES"); });
  withStaged(
      [&](const OperationTag& tag) {
        Bytes frame = frameOf(StagedFrame{tag, 512, 1}, segment);
        frame.pop_back();
        return Frames{frame};
      },
      [](auto& ranks) { expectFailure(ranks.rank(0), "on the bulk lane that cannot be read"); });
  // The first frame says that nothing is posted, the second says the contrary.
  withStaged(
      [&](const OperationTag& tag) {
        return Frames{frameOf(StagedFrame{tag, 512, 1}, Payload(segment).first(384)),
                      frameOf(StagedFrame{tag, 512, 0}, segment)};
      },
      [](auto& ranks) { expectFailure(ranks.rank(0), "(kind 11: staged bytes) that does not fit"); });
}

TEST(PlanRun, AsksAPeerWhoseStagedBytesAreOfAnotherOperationOrSize) {
  using Frames = std::vector<Bytes>;
  const auto expectDesync = [](auto& ranks) {
    ASSERT_FALSE(ranks.rank(0).desyncs.empty());
    EXPECT_EQ(ranks.rank(0).desyncs[0], (std::pair<Rank, std::uint64_t>(1, 5)));
    EXPECT_TRUE(ranks.rank(0).failure.isOk());
  };
  const Bytes odd(7);
  withStaged([&](const OperationTag& tag) { return Frames{frameOf(StagedFrame{tag, 512, 1}, odd)}; }, expectDesync);
  withStaged(
      [&](const OperationTag& tag) {
        return Frames{frameOf(StagedFrame{{5, tag.fingerprint + 1}, 512, 1}, odd)};
      },
      expectDesync);
}

}  // namespace
}  // namespace shardwire::internal
