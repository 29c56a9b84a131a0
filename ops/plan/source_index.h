// All ranks' inputs, ordered for the question "which rank supplies this box?". In these words: a CONTRIBUTION counts
// once: an input with replica class 0, or all inputs of one replica class. A HOLDER is a rank's box of a contribution.
// A STOCK is one box of a contribution, with all holders of exactly this box. Contributions are numbered per tensor by
// their lowest (rank, input), which is also their order as writers. Built once per GlobalSpec, without references into
// the GlobalSpec; immutable; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/plan/box_list.h"
#include "ops/plan/cover_grid.h"
#include "ops/plan/global_spec.h"

namespace shardwire::internal {

// Ranks in the order of their hosts: the ranks of one host are neighbours.
class RankPlaces {
 public:
  // hosts.size() == numRanks, or empty: all on one host.
  RankPlaces(std::span<const std::int32_t> hosts, std::size_t numRanks);

  std::int32_t placeOf(Rank rank) const { return places_[static_cast<std::size_t>(rank)]; }
  // Places of the ranks that share a host with `rank`: [begin, end).
  std::int32_t hostBegin(Rank rank) const { return hostBegin_[static_cast<std::size_t>(rank)]; }
  std::int32_t hostEnd(Rank rank) const { return hostEnd_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<std::int32_t> places_;     // by rank
  std::vector<std::int32_t> hostBegin_;  // by rank
  std::vector<std::int32_t> hostEnd_;    // by rank
};

struct Holder {
  std::int32_t place = 0;
  Rank rank = 0;
  std::int32_t input = 0;
  std::int32_t slice = 0;
};

inline constexpr std::uint32_t kNoHolderSet = UINT32_MAX;

struct TensorSources {
  int numDims = 0;
  // Bytes of a staged element: copied, and combined with others.
  std::size_t copiedBytes = 1;
  std::size_t combinedBytes = 1;
  ReduceOp reduction = ReduceOp::kNone;
  BoxList stocks;
  std::vector<std::uint32_t> contribution;  // by stock
  std::vector<std::uint32_t> firstHolder;   // by stock, and one past the last
  std::vector<Holder> holders;              // of each stock: one per rank, by place
  // by stock: equal when the same two or more ranks hold the stock, in any tensor; kNoHolderSet for one
  std::vector<std::uint32_t> holderSet;
  BoxSearch search;  // all stocks
  CoverGrid grid;

  std::size_t elemBytes(std::uint32_t numSources) const { return numSources == 1 ? copiedBytes : combinedBytes; }
  std::span<const Holder> holdersOf(std::size_t stock) const {
    return {holders.data() + firstHolder[stock], firstHolder[stock + 1] - firstHolder[stock]};
  }
};

class SourceIndex {
 public:
  SourceIndex(const GlobalSpec& spec, std::span<const std::int32_t> hosts);
  SourceIndex(const SourceIndex&) = delete;  // the searches point into it
  SourceIndex& operator=(const SourceIndex&) = delete;

  const TensorSources& operator[](std::int32_t tensor) const { return tensors_[static_cast<std::size_t>(tensor)]; }
  std::size_t numTensors() const { return tensors_.size(); }
  std::uint32_t numHolderSets() const { return numHolderSets_; }
  const RankPlaces& places() const { return places_; }

 private:
  RankPlaces places_;
  std::vector<TensorSources> tensors_;
  std::uint32_t numHolderSets_ = 0;
};

}  // namespace shardwire::internal
