#include "ops/collectives/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

namespace shardwire::internal {

namespace {

constexpr std::size_t kFrame = std::numeric_limits<std::size_t>::max() - 1;  // Selection::frameBytes
constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
constexpr int kManyRanks = std::numeric_limits<int>::max();

// Read from the top: the first row of the collective whose limits hold.
struct Row {
  Collective kind;
  std::size_t maxBytes;  // of one rank's tensor
  int maxRanks;
  bool oneHostOnly;
  Algorithm algorithm;
  const char* why;
};

constexpr Row kTable[] = {
    {Collective::kBroadcast, kFrame, 16, false, Algorithm::kDirect, "a store for each rank costs less than the hops of a tree"},
    {Collective::kBroadcast, kFrame, kManyRanks, false, Algorithm::kTree, "log2 n stores in a row instead of n - 1"},
    {Collective::kBroadcast, kAny, kManyRanks, true, Algorithm::kDirect, "all read the same memory at once"},
    {Collective::kBroadcast, std::size_t{256} << 10, 3, false, Algorithm::kDirect, "short enough for root's link"},
    {Collective::kBroadcast, kAny, 2, false, Algorithm::kDirect, "one receiver"},
    {Collective::kBroadcast, kAny, kManyRanks, false, Algorithm::kChunks, "root's link carries 2 B, not (n - 1) B"},
    {Collective::kReduce, kFrame, kManyRanks, false, Algorithm::kDirect, "one message each"},
    {Collective::kReduce, kAny, 2, false, Algorithm::kDirect, "there is one addend to fetch"},
    {Collective::kReduce, kAny, kManyRanks, false, Algorithm::kChunks, "all ranks do the arithmetic"},
    {Collective::kAllReduce, kFrame, kManyRanks, false, Algorithm::kDirect, "one message each"},
    {Collective::kAllReduce, kAny, kManyRanks, false, Algorithm::kChunks, "the least traffic there can be"},
    {Collective::kBarrier, kAny, 16, false, Algorithm::kDirect, "a store for each rank costs less than further hops"},
    {Collective::kBarrier, kAny, kManyRanks, false, Algorithm::kDissemination, "log2 n messages instead of n - 1"},
    {Collective::kAllGather, kAny, kManyRanks, false, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kGather, kAny, kManyRanks, false, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kScatter, kAny, kManyRanks, false, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kReduceScatter, kAny, kManyRanks, false, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kAllToAll, kAny, kManyRanks, false, Algorithm::kDirect, "the least traffic there can be"},
};

std::size_t limitOf(const Row& row, const Selection& selection) {
  return row.maxBytes == kFrame ? selection.frameBytes : row.maxBytes;
}

bool fits(const Row& row, const Selection& selection) {
  return selection.topology.worldSize <= row.maxRanks && (!row.oneHostOnly || selection.topology.numHosts == 1);
}

constexpr std::array kBroadcasts{Algorithm::kDirect, Algorithm::kTree, Algorithm::kChunks};
constexpr std::array kReductions{Algorithm::kDirect, Algorithm::kChunks};
constexpr std::array kBarriers{Algorithm::kDirect, Algorithm::kDissemination};

const Algorithm* forcedFor(Collective kind, const Selection& selection) {
  const auto found = std::find_if(selection.forced.begin(), selection.forced.end(), [&](const auto& f) { return f.kind == kind; });
  return found == selection.forced.end() ? nullptr : &found->algorithm;
}

}  // namespace

std::span<const Algorithm> algorithmsOf(Collective kind) {
  switch (kind) {
    case Collective::kBroadcast:
      return kBroadcasts;
    case Collective::kReduce:
    case Collective::kAllReduce:
      return kReductions;
    case Collective::kBarrier:
      return kBarriers;
    default:
      return std::span(kBroadcasts).first(1);
  }
}

Algorithm select(const CollectiveCall& call, const Selection& selection) {
  if (selection.topology.worldSize == 1) {
    return Algorithm::kDirect;
  }
  const std::size_t bytes = static_cast<std::size_t>(call.numElems) * elementBytes(call.dtype);
  // A direct all-reduce writes what its peers read, unless they have it in a frame.
  const bool mustChunk = call.kind == Collective::kAllReduce && bytes > selection.frameBytes;
  if (const Algorithm* forced = forcedFor(call.kind, selection); forced != nullptr) {
    return mustChunk ? Algorithm::kChunks : *forced;
  }
  for (const Row& row : kTable) {
    if (row.kind == call.kind && fits(row, selection) && bytes <= limitOf(row, selection)) {
      return row.algorithm;
    }
  }
  return Algorithm::kDirect;
}

std::string describeSelection(const Selection& selection) {
  std::string text =
      fmt::format("{} ranks on {} host{}\n{:<15}{:>14}  {:<14} why\n", selection.topology.worldSize, selection.topology.numHosts,
                  selection.topology.numHosts == 1 ? "" : "s", "collective", "bytes up to", "algorithm");
  if (selection.topology.worldSize == 1) {
    return "one rank: nothing to choose\n";
  }
  for (const Collective kind : kCollectives) {
    if (const Algorithm* forced = forcedFor(kind, selection); forced != nullptr) {
      text += fmt::format("{:<15}{:>14}  {:<14} forced\n", collectiveName(kind), "any", algorithmName(*forced));
      continue;
    }
    std::optional<std::size_t> covered;  // by the rows above
    for (const Row& row : kTable) {
      const std::size_t limit = limitOf(row, selection);
      if (row.kind != kind || !fits(row, selection) || (covered && limit <= *covered)) {
        continue;
      }
      covered = limit;
      text += fmt::format("{:<15}{:>14}  {:<14} {}\n", collectiveName(kind), limit == kAny ? "any" : fmt::format("{}", limit),
                          algorithmName(row.algorithm), row.why);
    }
  }
  return text;
}

Result<std::vector<ForcedAlgorithm>> parseAlgorithms(std::string_view text) {
  std::vector<ForcedAlgorithm> forced;
  const auto refuse = [&](std::string_view what, std::string_view given, std::string_view known) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("SHARDWIRE_ALGORITHMS={}: {} \"{}\" is not known; there are {}. Write collective=algorithm pairs, as in "
                              "broadcast=tree,reduce=chunks",
                              text, what, given, known));
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view pair = text.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = pair.substr(0, equals);
    const std::string_view wanted = equals < pair.size() ? pair.substr(equals + 1) : std::string_view();
    const auto* kind =
        std::find_if(std::begin(kCollectives), std::end(kCollectives), [&](Collective k) { return collectiveName(k) == name; });
    if (kind == std::end(kCollectives)) {
      std::vector<std::string_view> known;
      std::transform(std::begin(kCollectives), std::end(kCollectives), std::back_inserter(known), collectiveName);
      return refuse("the collective", name, fmt::format("{}", fmt::join(known, ", ")));
    }
    const auto algorithms = algorithmsOf(*kind);
    const auto algorithm = std::find_if(algorithms.begin(), algorithms.end(), [&](Algorithm a) { return algorithmName(a) == wanted; });
    if (algorithm == algorithms.end()) {
      std::vector<std::string_view> known;
      std::transform(algorithms.begin(), algorithms.end(), std::back_inserter(known), algorithmName);
      return refuse(fmt::format("for {}, the algorithm", name), wanted, fmt::format("{}", fmt::join(known, ", ")));
    }
    forced.push_back({*kind, *algorithm});
  }
  return forced;
}

}  // namespace shardwire::internal
