// One table decides. Rows are read from the top: the first row of the collective whose limits hold gives the algorithm.
// SHARDWIRE_ALGORITHMS replaces the table for the collectives named there. All ranks must choose the same algorithm, so
// the choice depends only on facts known to all ranks: the collective, the bytes, the number of ranks and their hosts.
#include "ops/collectives/select.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "ops/collectives/rank_tree.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kFrame = std::numeric_limits<std::size_t>::max() - 1;  // Selection::frameBytes
constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
// Between hosts, below this size a further stage costs more time than the stage saves; measured over tcp,
// docs/benchmarks.md.
constexpr std::size_t kShortAcross = std::size_t{64} << 10;
constexpr int kManyRanks = std::numeric_limits<int>::max();

// Which placements of ranks a row is for.
enum class Hosts : unsigned char {
  kAny,
  kOne,     // all ranks share a host
  kShared,  // several hosts, some with several ranks
};

// Read from the top: the first row of the collective whose limits hold.
struct Row {
  Collective kind;
  std::size_t maxBytes;  // of one rank's tensor
  int maxRanks;
  Hosts hosts;
  Algorithm algorithm;
  const char* why;
};

constexpr Row kTable[] = {
    {Collective::kBroadcast, kFrame, kFewRanks, Hosts::kAny, Algorithm::kDirect,
     "a store for each rank costs less than the hops of a tree"},
    {Collective::kBroadcast, kFrame, kManyRanks, Hosts::kAny, Algorithm::kTree,
     "log2 n stores in a row instead of n - 1"},
    {Collective::kBroadcast, kAny, kManyRanks, Hosts::kOne, Algorithm::kDirect, "all read the same memory at once"},
    {Collective::kBroadcast, std::size_t{256} << 10, 3, Hosts::kAny, Algorithm::kDirect,
     "short enough for root's link"},
    {Collective::kBroadcast, kAny, 2, Hosts::kAny, Algorithm::kDirect, "one receiver"},
    {Collective::kBroadcast, kAny, kManyRanks, Hosts::kShared, Algorithm::kHierarchical,
     "chunks cross between two hosts once"},
    {Collective::kBroadcast, kAny, kManyRanks, Hosts::kAny, Algorithm::kChunks,
     "root's link carries 2 B, not (n - 1) B"},
    {Collective::kReduce, kFrame, kManyRanks, Hosts::kAny, Algorithm::kDirect, "one message each"},
    {Collective::kReduce, kAny, 2, Hosts::kAny, Algorithm::kDirect, "there is one addend to fetch"},
    {Collective::kReduce, kAny, kManyRanks, Hosts::kAny, Algorithm::kChunks, "all ranks do the arithmetic"},
    {Collective::kAllReduce, kFrame, kFewRanks, Hosts::kAny, Algorithm::kDirect, "one message each"},
    {Collective::kAllReduce, kFrame, kManyRanks, Hosts::kAny, Algorithm::kTree,
     "2 (n - 1) messages and n - 1 links, not n (n - 1)"},
    {Collective::kAllReduce, kShortAcross, kManyRanks, Hosts::kAny, Algorithm::kChunks,
     "the least traffic there can be; two stages"},
    {Collective::kAllReduce, kAny, kManyRanks, Hosts::kShared, Algorithm::kHierarchical,
     "combined chunks cross between two hosts once"},
    {Collective::kAllReduce, kAny, kManyRanks, Hosts::kAny, Algorithm::kChunks, "the least traffic there can be"},
    {Collective::kBarrier, kAny, kFewRanks, Hosts::kAny, Algorithm::kDirect,
     "a store for each rank costs less than further hops"},
    {Collective::kBarrier, kAny, kManyRanks, Hosts::kAny, Algorithm::kDissemination,
     "log2 n messages instead of n - 1"},
    {Collective::kAllGather, kShortAcross, kManyRanks, Hosts::kAny, Algorithm::kDirect, "one stage"},
    {Collective::kAllGather, kAny, kManyRanks, Hosts::kShared, Algorithm::kHierarchical,
     "each tensor crosses between two hosts once"},
    {Collective::kAllGather, kAny, kManyRanks, Hosts::kAny, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kGather, kAny, kManyRanks, Hosts::kAny, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kScatter, kAny, kManyRanks, Hosts::kAny, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kReduceScatter, kAny, kManyRanks, Hosts::kAny, Algorithm::kDirect, "the least traffic there can be"},
    {Collective::kAllToAll, kAny, kManyRanks, Hosts::kAny, Algorithm::kDirect, "the least traffic there can be"},
};

std::size_t limitOf(const Row& row, const Selection& selection) {
  return row.maxBytes == kFrame ? selection.frameBytes : row.maxBytes;
}

bool fits(const Row& row, const Selection& selection) {
  const Topology& topology = selection.topology;
  const bool onOne = topology.numHosts == 1;
  const bool isPlaced =
      row.hosts == Hosts::kAny || (row.hosts == Hosts::kOne ? onOne : !onOne && topology.numHosts < topology.worldSize);
  return topology.worldSize <= row.maxRanks && isPlaced;
}

constexpr std::array kBroadcasts{Algorithm::kDirect, Algorithm::kTree, Algorithm::kChunks, Algorithm::kHierarchical};
constexpr std::array kReductions{Algorithm::kDirect, Algorithm::kChunks};
constexpr std::array kAllReductions{Algorithm::kDirect, Algorithm::kTree, Algorithm::kChunks, Algorithm::kHierarchical};
constexpr std::array kAllGathers{Algorithm::kDirect, Algorithm::kHierarchical};
constexpr std::array kBarriers{Algorithm::kDirect, Algorithm::kDissemination};

const Algorithm* forcedFor(Collective kind, const Selection& selection) {
  const auto found = std::ranges::find(selection.forced, kind, &ForcedAlgorithm::kind);
  return found == selection.forced.end() ? nullptr : &found->algorithm;
}

}  // namespace

std::span<const Algorithm> algorithmsOf(Collective kind) {
  switch (kind) {
    case Collective::kBroadcast:
      return kBroadcasts;
    case Collective::kReduce:
      return kReductions;
    case Collective::kAllReduce:
      return kAllReductions;
    case Collective::kAllGather:
      return kAllGathers;
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
  // A direct all-reduce overwrites bytes that its peers read, unless the bytes are sent in a frame.
  const bool mustChunk = call.kind == Collective::kAllReduce && bytes > selection.frameBytes;
  if (const Algorithm* forced = forcedFor(call.kind, selection); forced != nullptr) {
    return mustChunk && *forced == Algorithm::kDirect ? Algorithm::kChunks : *forced;
  }
  for (const Row& row : kTable) {
    if (row.kind == call.kind && fits(row, selection) && bytes <= limitOf(row, selection)) {
      return row.algorithm;
    }
  }
  return Algorithm::kDirect;
}

std::string describeSelection(const Selection& selection) {
  std::string text = fmt::format("{} ranks on {} host{}\n{:<15}{:>14}  {:<14} why\n", selection.topology.worldSize,
                                 selection.topology.numHosts, selection.topology.numHosts == 1 ? "" : "s", "collective",
                                 "bytes up to", "algorithm");
  if (selection.topology.worldSize == 1) {
    return "one rank: nothing to choose\n";
  }
  const auto addRow = [&text](Collective kind, std::size_t limit, Algorithm algorithm, const char* why) {
    text += fmt::format("{:<15}{:>14}  {:<14} {}\n", collectiveName(kind),
                        limit == kAny ? "any" : fmt::format("{}", limit), algorithmName(algorithm), why);
  };
  for (const Collective kind : kCollectives) {
    if (const Algorithm* forced = forcedFor(kind, selection); forced != nullptr) {
      const bool isShort = kind == Collective::kAllReduce && *forced == Algorithm::kDirect;
      addRow(kind, isShort ? selection.frameBytes : kAny, *forced, "forced");
      if (isShort) {
        addRow(kind, kAny, Algorithm::kChunks, "direct overwrites what peers still read");
      }
      continue;
    }
    std::optional<std::size_t> covered;  // by the rows above
    for (const Row& row : kTable) {
      const std::size_t limit = limitOf(row, selection);
      if (row.kind != kind || !fits(row, selection) || (covered && limit <= *covered)) {
        continue;
      }
      covered = limit;
      addRow(kind, limit, row.algorithm, row.why);
    }
  }
  return text;
}

Result<std::vector<ForcedAlgorithm>> parseAlgorithms(std::string_view text) {
  std::vector<ForcedAlgorithm> forced;
  const auto refuse = [&](std::string_view what, std::string_view given, const auto& known, const auto& nameOf) {
    std::vector<std::string_view> names;
    std::ranges::transform(known, std::back_inserter(names), nameOf);
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format(
            "SHARDWIRE_ALGORITHMS={}: {} \"{}\" is not known; there are {}. Write collective=algorithm pairs, as in "
            "broadcast=tree,reduce=chunks",
            text, what, given, fmt::join(names, ", ")));
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string_view pair = text.substr(at, end - at);
    at = end + 1;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = pair.substr(0, equals);
    const std::string_view wanted = equals < pair.size() ? pair.substr(equals + 1) : std::string_view();
    const auto* kind = std::ranges::find(kCollectives, name, collectiveName);
    if (kind == std::end(kCollectives)) {
      return refuse("the collective", name, kCollectives, collectiveName);
    }
    const auto algorithms = algorithmsOf(*kind);
    const auto algorithm = std::ranges::find(algorithms, wanted, algorithmName);
    if (algorithm == algorithms.end()) {
      return refuse(fmt::format("for {}, the algorithm", name), wanted, algorithms, algorithmName);
    }
    forced.push_back({*kind, *algorithm});
  }
  return forced;
}

}  // namespace shardwire::internal
