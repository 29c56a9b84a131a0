#include "ops/plan/survey.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "tests/support/random_spec.h"

namespace shardwire::internal {
namespace {

using namespace shardwire::testing;

using Element = std::vector<std::int64_t>;  // tensor, then coordinates

void forEachElement(const Slice& slice, std::int32_t tensor, const std::function<void(const Element&)>& visit) {
  if (numElements(slice.shape) == 0) {
    return;
  }
  const int numDims = slice.shape.size();
  Element element(static_cast<std::size_t>(numDims) + 1, tensor);
  for (std::int64_t flat = 0; flat < numElements(slice.shape); ++flat) {
    std::int64_t rest = flat;
    for (int d = numDims - 1; d >= 0; --d) {
      element[static_cast<std::size_t>(d) + 1] = slice.offset[d] + rest % slice.shape[d];
      rest /= slice.shape[d];
    }
    visit(element);
  }
}

void collect(const std::vector<LocalTensor>& locals, std::set<Element>& elements) {
  for (const LocalTensor& local : locals) {
    for (const PlacedSlice& placed : local.slices) {
      forEachElement(placed.slice, local.tensor, [&elements](const Element& element) { elements.insert(element); });
    }
  }
}

// leastBytes by definition, element by element.
std::uint64_t naiveLeast(const GlobalSpec& spec, const std::vector<Rank>& ranks) {
  std::set<Element> wanted;
  std::set<Element> held;
  std::set<Element> anywhere;
  for (std::size_t r = 0; r < spec.ranks.size(); ++r) {
    collect(spec.ranks[r].inputs, anywhere);
  }
  for (const Rank rank : ranks) {
    collect(spec.ranks[static_cast<std::size_t>(rank)].outputs, wanted);
    collect(spec.ranks[static_cast<std::size_t>(rank)].inputs, held);
  }
  std::uint64_t bytes = 0;
  for (const Element& element : wanted) {
    const GlobalTensor& tensor = spec.tensors[static_cast<std::size_t>(element[0])];
    bytes += !held.contains(element) && anywhere.contains(element)
                 ? std::min(elementBytes(tensor.dtype), elementBytes(tensor.dtypeOfOutputs()))
                 : 0;
  }
  return bytes;
}

TEST(Survey, CountsWhatThePlansAndTheTrafficSayInRandomCases) {
  const char* wanted = std::getenv("SHARDWIRE_ORACLE_CASES");
  const std::uint64_t cases =
      std::min<std::uint64_t>(wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1000, 5000);
  for (std::uint64_t seed = 1; seed <= cases; ++seed) {
    const RandomCase randomCase = makeRandomCase(seed);
    const Result<GlobalSpec> spec = mergeSpecs(randomCase.specs);
    ASSERT_TRUE(spec.isOk()) << describe(randomCase);
    std::vector<std::int32_t> hosts;
    for (std::size_t r = 0; r < spec->ranks.size(); ++r) {
      hosts.push_back(static_cast<std::int32_t>((r + seed) / 2 % 3));
    }
    const Result<Survey> survey = surveyOf(*spec, hosts);
    ASSERT_TRUE(survey.isOk()) << survey.status().message() << "\n" << describe(randomCase);
    std::map<Rank, std::uint64_t> sent;
    std::map<Rank, std::uint64_t> received;
    std::map<Rank, std::uint64_t> local;
    for (const Traffic::Edge& edge : survey->edges) {
      if (edge.source != edge.destination) {
        sent[edge.source] += edge.bytes;
        received[edge.destination] += edge.bytes;
      } else {
        local[edge.source] = edge.bytes;
      }
    }
    std::map<std::int32_t, std::vector<Rank>> ranksOf;
    for (std::size_t r = 0; r < spec->ranks.size(); ++r) {
      const auto rank = static_cast<Rank>(r);
      const RankSurvey& counted = survey->ranks[r];
      EXPECT_EQ(counted.bytesSent, sent[rank]) << describe(randomCase);
      EXPECT_EQ(counted.bytesReceived, received[rank]) << describe(randomCase);
      EXPECT_LE(counted.bytesLocal, local[rank]) << describe(randomCase);  // that has own addends, too
      EXPECT_EQ(counted.leastReceived, naiveLeast(*spec, {rank})) << describe(randomCase);
      EXPECT_GE(counted.bytesReceived, counted.leastReceived) << describe(randomCase);
      ranksOf[hosts[r]].push_back(rank);
    }
    for (const auto& [host, ranks] : ranksOf) {
      const std::uint64_t expected = ranksOf.size() == 1 ? 0 : naiveLeast(*spec, ranks);
      ASSERT_EQ(survey->leastIntoHost[static_cast<std::size_t>(host)], expected) << describe(randomCase);
    }
  }
}

TEST(Survey, SaysWhatRedistributeSaysOfGapsAndWrongHosts) {
  LocalSpec wants;
  wants.tensors.push_back({"", Dims{4}, DType::kFloat32});
  wants.outputs.push_back({0, Dims{4}, {{{Dims{0}, Dims{4}}, Dims{0}}}});
  const std::vector<LocalSpec> specs(1, wants);
  const Result<GlobalSpec> spec = mergeSpecs(specs);
  ASSERT_TRUE(spec.isOk());
  EXPECT_EQ(surveyOf(*spec).status().code(), StatusCode::kGap);
  const std::vector<std::int32_t> hosts = {0, 1};
  EXPECT_EQ(surveyOf(*spec, hosts).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shardwire::internal
