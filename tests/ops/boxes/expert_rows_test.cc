// Rows of tokens against a model that looks at each choice alone, on random routing and every instruction set: first
// the random routing, then the model, then one round of all sources, and the tests.
#include "ops/boxes/expert_rows.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "ops/reduce/isa_kernels.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

struct Source {
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> counts;
  std::vector<std::int32_t> order;
  std::vector<std::int32_t> places;
  std::vector<float> tokens;
};

struct Routing {
  std::int64_t topK;
  std::int64_t numExperts;
  std::size_t lanes;
  std::vector<Source> sources;
};

Routing randomRouting(Random& random) {
  Routing routing{pick(random, 1, 4), pick(random, 1, 7), static_cast<std::size_t>(pick(random, 1, 2100)), {}};
  routing.sources.resize(static_cast<std::size_t>(pick(random, 1, 4)));
  for (Source& source : routing.sources) {
    const std::int64_t numTokens = pick(random, 0, 12);
    for (std::int64_t i = 0; i < numTokens * routing.topK; ++i) {
      source.ids.push_back(pick(random, kNoExpert, routing.numExperts - 1));
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(numTokens) * routing.lanes; ++i) {
      source.tokens.push_back(static_cast<float>(pick(random, -100, 100)));
    }
    source.counts.resize(static_cast<std::size_t>(routing.numExperts));
    source.order.resize(source.ids.size());
    source.places.resize(source.ids.size());
    EXPECT_EQ(sortByExpert(source.ids, source.counts, source.order, source.places), -1);
  }
  return routing;
}

std::vector<std::int64_t> countsOf(const Routing& routing) {
  std::vector<std::int64_t> counts;
  for (const Source& source : routing.sources) {
    counts.insert(counts.end(), source.counts.begin(), source.counts.end());
  }
  return counts;
}

// The token of each row for the experts from `begin` to `end`.
std::vector<const float*> modelRows(const Routing& routing, std::int64_t begin, std::int64_t end) {
  std::vector<const float*> rows;
  for (std::int64_t expert = begin; expert < end; ++expert) {
    for (const Source& source : routing.sources) {
      for (std::size_t choice = 0; choice < source.ids.size(); ++choice) {
        if (source.ids[choice] == expert) {
          rows.push_back(source.tokens.data() + choice / static_cast<std::size_t>(routing.topK) * routing.lanes);
        }
      }
    }
  }
  return rows;
}

// Every other source fills the targets from its experts alone; then the own rows of source 0 are taken from `outputs`.
void checkRound(const Routing& routing, const std::vector<float>& weights) {
  const std::size_t rowBytes = routing.lanes * sizeof(float);
  const auto numSources = static_cast<std::int64_t>(routing.sources.size());
  const std::int64_t half = routing.numExperts / 2;
  const std::vector<std::int64_t> counts = countsOf(routing);
  std::vector<std::vector<float>> returned;
  std::vector<std::byte*> targets;
  for (const Source& source : routing.sources) {
    returned.emplace_back(source.ids.size() * routing.lanes + 1, 7.5F);
  }
  for (std::vector<float>& rows : returned) {
    targets.push_back(reinterpret_cast<std::byte*>(rows.data()));
  }
  std::vector<ExpertChunk> ownChunks;
  std::vector<float> ownRows;
  for (const auto& [begin, end] : {std::pair{std::int64_t{0}, half}, std::pair{half, routing.numExperts}}) {
    const std::vector<ExpertChunk> chunks = chunksOf(counts.data(), routing.numExperts, numSources, begin, end);
    const std::vector<const float*> wanted = modelRows(routing, begin, end);
    std::vector<float> rows(wanted.size() * routing.lanes + 1);
    std::vector<RowSource> from;
    for (const Source& source : routing.sources) {
      from.push_back({reinterpret_cast<const std::byte*>(source.tokens.data()), source.order.data()});
    }
    gatherRows(reinterpret_cast<std::byte*>(rows.data()), rowBytes, from, chunks, routing.topK);
    for (std::size_t row = 0; row < wanted.size(); ++row) {
      ASSERT_EQ(std::memcmp(rows.data() + row * routing.lanes, wanted[row], rowBytes), 0);
    }
    if (begin == 0) {
      targets[0] = nullptr;
      for (std::size_t i = 0; i < chunks.size(); i += routing.sources.size()) {
        ownChunks.push_back(chunks[i]);
      }
      ownRows = rows;
    } else {
      targets[0] = reinterpret_cast<std::byte*>(returned[0].data());
    }
    returnRows(targets, reinterpret_cast<const std::byte*>(rows.data()), rowBytes, chunks);
  }
  const Source& source = routing.sources[0];
  std::vector<float> sums(source.tokens.size() + 1);
  sumRows(reinterpret_cast<std::byte*>(sums.data()),
          {reinterpret_cast<const std::byte*>(returned[0].data()), reinterpret_cast<const std::byte*>(ownRows.data()),
           ownChunks, rowBytes},
          source.places, weights.empty() ? nullptr : weights.data(), routing.topK, DType::kFloat32);
  for (std::size_t i = 0; i < source.tokens.size(); ++i) {
    float wanted = 0;
    for (std::int64_t j = 0; j < routing.topK; ++j) {
      const std::size_t choice =
          i / routing.lanes * static_cast<std::size_t>(routing.topK) + static_cast<std::size_t>(j);
      if (source.ids[choice] != kNoExpert) {
        wanted += (weights.empty() ? 1.0F : weights[choice]) * source.tokens[i];
      }
    }
    ASSERT_EQ(sums[i], wanted) << i;
  }
}

TEST(ExpertRows, GoToTheirExpertsAndBack) {
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(testing::Message() << "isa " << static_cast<int>(isa) << ", seed " << seed);
      Random random(seed);
      const Routing routing = randomRouting(random);
      std::vector<float> weights;
      for (std::size_t i = 0; seed % 3 != 0 && i < routing.sources[0].ids.size(); ++i) {
        weights.push_back(static_cast<float>(pick(random, -8, 8)) / 4);
      }
      checkRound(routing, weights);
    }
  }
}

TEST(ExpertRows, AreSumsInFloat32RoundedOnce) {
  const std::vector<std::uint16_t> rows = {0x4380, 0x3F80, 0xC380};  // 256, 1, -256 as bfloat16
  const std::vector<std::int32_t> places = {0, 1, 2};
  std::uint16_t sum = 0;
  sumRows(reinterpret_cast<std::byte*>(&sum), {reinterpret_cast<const std::byte*>(rows.data()), nullptr, {}, 2}, places,
          nullptr, 3, DType::kBFloat16);
  EXPECT_EQ(sum, 0x3F80);
}

TEST(ExpertRows, ATokenWithoutAnExpertIsZero) {
  const std::vector<std::int32_t> places = {-1, -1};
  float sum = 5;
  sumRows(reinterpret_cast<std::byte*>(&sum), {nullptr, nullptr, {}, sizeof sum}, places, nullptr, 2, DType::kFloat32);
  EXPECT_EQ(sum, 0);
}

TEST(ExpertRows, AnIdThatIsNoExpertIsFound) {
  const std::vector<std::int64_t> ids = {0, 1, kNoExpert, 2};
  std::vector<std::int64_t> counts(2);
  std::vector<std::int32_t> order(4);
  std::vector<std::int32_t> places(4);
  EXPECT_EQ(sortByExpert(ids, counts, order, places), 3);
  EXPECT_EQ(sortByExpert(std::span(ids).first(3), counts, order, places), -1);
  EXPECT_EQ(counts, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(sortByExpert(std::vector<std::int64_t>{-2}, counts, order, places), 0);
}

}  // namespace
}  // namespace shardwire::internal
