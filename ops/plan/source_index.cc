// One pass over all ranks' inputs gathers the contributions and stocks of each tensor in the order of (rank, input). A
// second pass packs the holders of each stock next to each other, ordered by host. Stocks and sets of holders are found
// by hash: with replicas, thousands of ranks hold equal boxes. At the end each tensor gets two searches: the grid of
// covers for regular layouts, the sorted boxes for all layouts.
#include "ops/plan/source_index.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "ops/plan/hash.h"
#include "ops/plan/plan.h"

namespace shardwire::internal {

namespace {

// Numbers sets of ranks by content, over all tensors.
class HolderSets {
 public:
  std::uint32_t numberOf(std::span<const Holder> holders) {
    Hasher hasher;
    for (const Holder& holder : holders) {
      hasher.add(static_cast<std::uint64_t>(holder.rank));
    }
    const auto [begin, end] = numbers_.equal_range(hasher.value());
    for (auto at = begin; at != end; ++at) {
      const std::vector<Rank>& ranks = sets_[at->second];
      if (std::equal(ranks.begin(), ranks.end(), holders.begin(), holders.end(),
                     [](Rank rank, const Holder& holder) { return rank == holder.rank; })) {
        return at->second;
      }
    }
    const auto number = static_cast<std::uint32_t>(sets_.size());
    numbers_.emplace(hasher.value(), number);
    std::vector<Rank>& ranks = sets_.emplace_back();
    for (const Holder& holder : holders) {
      ranks.push_back(holder.rank);
    }
    return number;
  }
  std::uint32_t size() const { return static_cast<std::uint32_t>(sets_.size()); }

 private:
  std::unordered_multimap<std::uint64_t, std::uint32_t> numbers_;
  std::vector<std::vector<Rank>> sets_;
};

// Gathers one tensor's inputs in order of (rank, input), then packs the holders of each stock.
class TensorGatherer {
 public:
  // `areEqual`: inputs of any class hold equal elements wherever the inputs overlap.
  TensorGatherer(TensorSources& out, bool areEqual) : out_(out), areEqual_(areEqual) {}

  void addInput(const LocalTensor& local, std::int32_t input, Rank rank, std::int32_t place) {
    const std::uint64_t replicaClass = areEqual_ ? kClassOfAll : local.replicaClass;
    const std::uint32_t contribution = contributionOf(replicaClass);
    for (std::size_t s = 0; s < local.slices.size(); ++s) {
      const Slice& slice = local.slices[s].slice;
      rowOf(slice, row_.data());
      if (isEmptyRow(out_.numDims, row_.data())) {
        continue;
      }
      const std::uint32_t stock = stockOf(contribution, replicaClass != 0);
      holders_.push_back({place, rank, input, static_cast<std::int32_t>(s)});
      stockOfHolder_.push_back(stock);
    }
  }

  void finish(HolderSets& sets) {
    packHolders();
    out_.holderSet.assign(out_.stocks.size(), kNoHolderSet);
    for (std::size_t stock = 0; stock < out_.stocks.size(); ++stock) {
      if (out_.holdersOf(stock).size() > 1) {
        out_.holderSet[stock] = sets.numberOf(out_.holdersOf(stock));
      }
    }
    out_.grid.build(out_.stocks);
    std::vector<std::uint32_t> all(out_.stocks.size());
    std::iota(all.begin(), all.end(), 0U);
    out_.search.build(out_.stocks, all, out_.grid.busiestDim());
  }

 private:
  std::uint32_t contributionOf(std::uint64_t replicaClass) {
    if (replicaClass == 0) {
      return numContributions_++;
    }
    const auto [found, isNew] = contributionOfClass_.try_emplace(replicaClass, numContributions_);
    numContributions_ += isNew ? 1 : 0;
    return found->second;
  }

  // The stock of row_, created when row_ is new. Boxes of class 0 always get new stocks, since the boxes of one local
  // tensor are disjoint.
  std::uint32_t stockOf(std::uint32_t contribution, bool mayBeShared) {
    const auto fresh = static_cast<std::uint32_t>(out_.stocks.size());
    if (mayBeShared) {
      Hasher hasher;
      hasher.add(static_cast<std::uint64_t>(contribution));
      for (int i = 0; i < 2 * out_.numDims; ++i) {
        hasher.add(static_cast<std::uint64_t>(row_[static_cast<std::size_t>(i)]));
      }
      const auto [begin, end] = stocksOfHash_.equal_range(hasher.value());
      for (auto at = begin; at != end; ++at) {
        const std::int64_t* other = out_.stocks[at->second];
        if (out_.contribution[at->second] == contribution &&
            std::equal(other, other + 2 * out_.numDims, row_.begin())) {
          return at->second;
        }
      }
      stocksOfHash_.emplace(hasher.value(), fresh);
    }
    out_.stocks.add(row_.data());
    out_.contribution.push_back(contribution);
    return fresh;
  }

  void packHolders() {
    const std::size_t numStocks = out_.stocks.size();
    out_.firstHolder.assign(numStocks + 1, 0);
    if (holders_.size() == numStocks) {  // one each, in order
      std::iota(out_.firstHolder.begin(), out_.firstHolder.end(), 0U);
      out_.holders = std::move(holders_);
      return;
    }
    std::vector<std::uint32_t> order(holders_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [this](std::uint32_t a, std::uint32_t b) {
      return stockOfHolder_[a] != stockOfHolder_[b] ? stockOfHolder_[a] < stockOfHolder_[b]
                                                    : holders_[a].place < holders_[b].place;
    });
    std::size_t previous = order.size();
    for (const std::uint32_t at : order) {
      // A rank that holds the box twice supplies it from the first.
      const bool isRepeat = previous < order.size() && stockOfHolder_[previous] == stockOfHolder_[at] &&
                            holders_[previous].rank == holders_[at].rank;
      previous = at;
      if (!isRepeat) {
        out_.holders.push_back(holders_[at]);
        ++out_.firstHolder[stockOfHolder_[at] + 1];
      }
    }
    std::partial_sum(out_.firstHolder.begin(), out_.firstHolder.end(), out_.firstHolder.begin());
  }

  static constexpr std::uint64_t kClassOfAll = 1;

  TensorSources& out_;
  const bool areEqual_;
  BoxRow row_{};
  std::uint32_t numContributions_ = 0;
  std::unordered_map<std::uint64_t, std::uint32_t> contributionOfClass_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> stocksOfHash_;
  std::vector<Holder> holders_;
  std::vector<std::uint32_t> stockOfHolder_;
};

}  // namespace

RankPlaces::RankPlaces(std::span<const std::int32_t> hosts, std::size_t numRanks)
    : places_(numRanks), hostBegin_(numRanks), hostEnd_(numRanks) {
  std::vector<std::size_t> order(numRanks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto hostOf = [&hosts](std::size_t rank) { return hosts.empty() ? 0 : hosts[rank]; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return hostOf(a) < hostOf(b); });
  for (std::size_t begin = 0; begin < numRanks;) {
    std::size_t end = begin;
    while (end < numRanks && hostOf(order[end]) == hostOf(order[begin])) {
      ++end;
    }
    for (std::size_t place = begin; place < end; ++place) {
      places_[order[place]] = static_cast<std::int32_t>(place);
      hostBegin_[order[place]] = static_cast<std::int32_t>(begin);
      hostEnd_[order[place]] = static_cast<std::int32_t>(end);
    }
    begin = end;
  }
}

SourceIndex::SourceIndex(const GlobalSpec& spec, std::span<const std::int32_t> hosts)
    : places_(hosts, spec.ranks.size()) {
  tensors_.resize(spec.tensors.size());
  std::vector<TensorGatherer> gatherers;
  gatherers.reserve(tensors_.size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    TensorSources& sources = tensors_[t];
    sources.numDims = spec.tensors[t].shape.size();
    const DType outputDtype = spec.tensors[t].dtypeOfOutputs();
    sources.copiedBytes = elementBytes(stagedDtype(spec.tensors[t].dtype, outputDtype, false));
    sources.combinedBytes = elementBytes(stagedDtype(spec.tensors[t].dtype, outputDtype, true));
    sources.reduction = spec.tensors[t].reduction;
    sources.stocks.reset(sources.numDims);
    gatherers.emplace_back(sources, spec.overlap == Overlap::kAny && sources.reduction == ReduceOp::kNone);
  }
  for (std::size_t rank = 0; rank < spec.ranks.size(); ++rank) {
    const auto place = places_.placeOf(static_cast<Rank>(rank));
    const std::vector<LocalTensor>& inputs = spec.ranks[rank].inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      gatherers[static_cast<std::size_t>(inputs[i].tensor)].addInput(inputs[i], static_cast<std::int32_t>(i),
                                                                     static_cast<Rank>(rank), place);
    }
  }
  HolderSets sets;
  for (TensorGatherer& gatherer : gatherers) {
    gatherer.finish(sets);
  }
  numHolderSets_ = sets.size();
}

}  // namespace shardwire::internal
