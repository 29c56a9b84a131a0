#include "ops/collectives/select.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

CollectiveCall callOf(Collective kind, std::int64_t bytes) {
  return {.kind = kind, .dtype = DType::kUInt8, .numElems = bytes};
}

Selection on(int ranks, int hosts) {
  return {{ranks, hosts, {}}, 8192, {}};
}

TEST(Select, TakesOneStageForWhatFitsAFrameAndChunksBeyond) {
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8192), on(4, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8193), on(4, 1)), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8192), on(16, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8192), on(17, 1)), Algorithm::kTree);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 4), on(1024, 128)), Algorithm::kTree);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8193), on(17, 1)), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kReduce, 1 << 20), on(2, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kReduce, 1 << 20), on(4, 1)), Algorithm::kChunks);
}

TEST(Select, LooksAtRanksAndHosts) {
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 100), on(16, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 100), on(17, 1)), Algorithm::kTree);
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 1 << 26), on(64, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 1 << 26), on(64, 64)), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 1 << 26), on(64, 8)), Algorithm::kHierarchical);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 1 << 26), on(64, 8)), Algorithm::kHierarchical);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 1 << 26), on(64, 64)), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 10000), on(64, 8)), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kAllGather, 1 << 26), on(64, 8)), Algorithm::kHierarchical);
  EXPECT_EQ(select(callOf(Collective::kAllGather, 1 << 10), on(64, 8)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 1 << 26), on(2, 2)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kBarrier, 0), on(16, 1)), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kBarrier, 0), on(17, 1)), Algorithm::kDissemination);
}

TEST(Select, EveryCollectiveHasARowForEveryCall) {
  for (const Collective kind : kCollectives) {
    for (const int ranks : {1, 2, 3, 16, 17, 1000}) {
      for (const int hosts : {1, 2}) {
        for (const std::int64_t bytes : {0, 1, 8192, 8193, 1 << 30}) {
          const Algorithm chosen = select(callOf(kind, bytes), on(ranks, hosts));
          const auto known = algorithmsOf(kind);
          EXPECT_NE(std::find(known.begin(), known.end(), chosen), known.end());
          if (ranks == 1) {
            EXPECT_EQ(chosen, Algorithm::kDirect);
          }
        }
      }
    }
  }
}

TEST(Select, PrintsItsTable) {
  const std::string text = describeSelection(on(4, 1));
  for (const char* part : {"4 ranks on 1 host", "all_reduce", "8192  direct", "any  chunks",
                           "the least traffic there can be", "barrier"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("  tree"), std::string::npos) << "16 ranks are few\n" << text;
}

// An all_reduce that does not fit a frame takes another algorithm than the forced one.
TEST(Select, PrintsWhereTheForcedAlgorithmDoesNotHold) {
  Selection selection = on(4, 1);
  selection.forced = {{Collective::kAllReduce, Algorithm::kDirect}, {Collective::kBroadcast, Algorithm::kDirect}};
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8192), selection), Algorithm::kDirect);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 8193), selection), Algorithm::kChunks);
  const std::string text = describeSelection(selection);
  EXPECT_NE(text.find("all_reduce               8192  direct         forced\n"
                      "all_reduce                any  chunks "),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("broadcast                 any  direct         forced\n"), std::string::npos) << text;
}

TEST(ParseAlgorithms, ForcesWhatItNames) {
  Selection selection = on(2, 1);
  auto forced = parseAlgorithms("broadcast=tree,reduce=chunks");
  ASSERT_TRUE(forced.isOk()) << forced.status().message();
  selection.forced = *forced;
  EXPECT_EQ(select(callOf(Collective::kBroadcast, 1), selection), Algorithm::kTree);
  EXPECT_EQ(select(callOf(Collective::kReduce, 1), selection), Algorithm::kChunks);
  EXPECT_EQ(select(callOf(Collective::kAllReduce, 1), selection), Algorithm::kDirect);
  EXPECT_NE(describeSelection(selection).find("forced"), std::string::npos);
  EXPECT_TRUE(parseAlgorithms("")->empty());
}

TEST(ParseAlgorithms, RefusesWhatItDoesNotKnowAndSaysWhatThereIs) {
  const auto expectRefused = [](const char* text, std::initializer_list<const char*> parts) {
    const auto forced = parseAlgorithms(text);
    ASSERT_FALSE(forced.isOk()) << text;
    EXPECT_EQ(forced.status().code(), StatusCode::kInvalidArgument);
    for (const char* part : parts) {
      EXPECT_NE(forced.status().message().find(part), std::string::npos) << forced.status().message();
    }
  };
  expectRefused("brodcast=tree", {"brodcast", "broadcast, reduce"});
  expectRefused("broadcast=ring", {"\"ring\"", "direct, tree, chunks"});
  expectRefused("broadcast", {"\"\"", "direct"});
  expectRefused("scatter=tree", {"direct"});
}

}  // namespace
}  // namespace shardwire::internal
