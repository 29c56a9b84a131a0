// Steps of one assignment. The wanted box is decomposed into CELLS; all of a cell has the same stocks. Each
// contribution of a cell gets a TIER, the holders that may supply the contribution. Cells that touch and have equal
// tiers are merged. Each cell is then cut into PIECES, and each piece gets one holder per contribution.
#include "ops/plan/assign_sources.h"

#include <algorithm>
#include <unordered_map>

#include "ops/plan/hash.h"

namespace shardwire::internal {

namespace {

struct Cut {
  int dim = 0;
  std::uint32_t numParts = 1;
};

// The outermost dimension that can be cut into `numParts` of nearly equal size. Without such a dimension, the nearest
// to equal sizes.
Cut chooseCut(int numDims, const std::int64_t* row, std::uint32_t numParts) {
  Cut best;
  double bestUnevenness = 0;
  for (int d = 0; d < numDims; ++d) {
    const std::int64_t extent = row[numDims + d] - row[d];
    const auto parts = static_cast<std::uint32_t>(std::min<std::int64_t>(numParts, extent));
    const std::int64_t longest = (extent - 1) / parts + 1;
    const double unevenness = static_cast<double>(longest) * parts / static_cast<double>(extent);
    if (parts > best.numParts ||
        (parts == best.numParts && parts > 1 && bestUnevenness > 1.1 && unevenness < bestUnevenness)) {
      best = {d, parts};
      bestUnevenness = unevenness;
    }
  }
  return best;
}

// Part `part` of the row, cut as `cut` says. Where the extent does not divide evenly, the first parts are longer by
// one.
void partOf(int numDims, const std::int64_t* row, const Cut& cut, std::uint32_t part, std::int64_t* out) {
  std::copy_n(row, 2 * numDims, out);
  if (cut.numParts == 1) {
    return;
  }
  const std::int64_t extent = row[numDims + cut.dim] - row[cut.dim];
  const std::int64_t shortPart = extent / cut.numParts;
  const std::int64_t numLonger = extent % cut.numParts;
  const auto beginOf = [&](std::int64_t p) { return row[cut.dim] + p * shortPart + std::min(p, numLonger); };
  out[cut.dim] = beginOf(part);
  out[numDims + cut.dim] = beginOf(part + 1);
}

}  // namespace

void Assigner::startRank() {
  for (const std::uint32_t set : touchedSets_) {
    boxesOfSet_[set] = 0;
  }
  touchedSets_.clear();
}

void Assigner::setSupplier(Rank supplier) {
  supplier_ = supplier;
  supplierSearch_.assign(index_.numTensors(), {});
  for (std::size_t t = 0; t < index_.numTensors(); ++t) {
    const TensorSources& sources = index_[static_cast<std::int32_t>(t)];
    std::vector<std::uint32_t> held;
    for (std::uint32_t stock = 0; stock < sources.stocks.size(); ++stock) {
      const auto holders = sources.holdersOf(stock);
      if (std::ranges::any_of(holders, [supplier](const Holder& holder) { return holder.rank == supplier; })) {
        held.push_back(stock);
      }
    }
    supplierSearch_[t].build(sources.stocks, held, sources.grid.busiestDim());
  }
}

void Assigner::reset(const TensorSources& sources) {
  candidates_.clear();
  cellBoxes_.reset(sources.numDims);
  cells_.clear();
  tiered_.clear();
  tiers_.clear();
  unions_.clear();
  pieces_.boxes.reset(sources.numDims);
  pieces_.pieces.clear();
  pieces_.sources.clear();
}

bool Assigner::coversOnce(const TensorSources& sources, const std::int64_t* row) const {
  return !sources.grid.hasOverlap() || (sources.grid.isUsable() && !sources.grid.coverOf(row).hasOverlap);
}

const Pieces& Assigner::assign(const WantedBox& wanted) {
  const TensorSources& sources = index_[wanted.tensor];
  reset(sources);
  sources.search.forEachOverlap(wanted.row, [this](std::uint32_t stock) { candidates_.push_back(stock); });
  const bool isSimple = candidates_.size() <= 1 || coversOnce(sources, wanted.row);
  if (isSimple) {
    for (const std::uint32_t stock : candidates_) {
      addCellOf(sources, stock, wanted.row);
    }
  } else {
    std::sort(candidates_.begin(), candidates_.end(), [&sources](std::uint32_t a, std::uint32_t b) {
      return sources.contribution[a] != sources.contribution[b] ? sources.contribution[a] < sources.contribution[b]
                                                                : a < b;
    });
    if (sources.reduction == ReduceOp::kNone) {
      decomposeLastWriter(sources, wanted);
    } else {
      decompose(sources, wanted);
    }
  }
  return finish(sources, wanted, !isSimple);
}

const Pieces& Assigner::assignFromSupplier(const WantedBox& wanted) {
  const TensorSources& sources = index_[wanted.tensor];
  reset(sources);
  supplierSearch_[static_cast<std::size_t>(wanted.tensor)].forEachOverlap(
      wanted.row, [this](std::uint32_t stock) { candidates_.push_back(stock); });
  if (candidates_.empty()) {
    return pieces_;
  }
  if (!coversOnce(sources, wanted.row)) {
    return assign(wanted);
  }
  for (const std::uint32_t stock : candidates_) {
    addCellOf(sources, stock, wanted.row);
  }
  return finish(sources, wanted, false);
}

void Assigner::addCellOf(const TensorSources& sources, std::uint32_t stock, const std::int64_t* row) {
  BoxRow common;
  intersectRows(sources.numDims, sources.stocks[stock], row, common.data());
  cells_.push_back({static_cast<std::uint32_t>(cellBoxes_.size()), {stock}});
  cellBoxes_.add(common.data());
}

// Cuts every cell at the border of the stock; the inner part gets the stock.
void Assigner::splitCells(const TensorSources& sources, std::uint32_t stock, std::vector<Cell>& cells) {
  const int numDims = sources.numDims;
  const std::size_t numCells = cells.size();
  for (std::size_t i = 0; i < numCells; ++i) {
    if (!rowsOverlap(numDims, cellBoxes_[cells[i].box], sources.stocks[stock])) {
      continue;
    }
    if (!rowContains(numDims, sources.stocks[stock], cellBoxes_[cells[i].box])) {
      BoxRow whole;
      BoxRow inner;
      std::copy_n(cellBoxes_[cells[i].box], 2 * numDims, whole.begin());
      intersectRows(numDims, whole.data(), sources.stocks[stock], inner.data());
      subtractRows(numDims, whole.data(), inner.data(), [&](const std::int64_t* rest) {
        cells.push_back({static_cast<std::uint32_t>(cellBoxes_.size()), cells[i].stocks});
        cellBoxes_.add(rest);
      });
      std::copy_n(inner.begin(), 2 * numDims, cellBoxes_[cells[i].box]);
    }
    cells[i].stocks.push_back(stock);
  }
}

void Assigner::decompose(const TensorSources& sources, const WantedBox& wanted) {
  cells_.push_back({0, {}});
  cellBoxes_.add(wanted.row);
  for (const std::uint32_t stock : candidates_) {
    splitCells(sources, stock, cells_);
  }
  std::erase_if(cells_, [](const Cell& cell) { return cell.stocks.empty(); });
}

void Assigner::decomposeLastWriter(const TensorSources& sources, const WantedBox& wanted) {
  splitScratch_.clear();
  splitScratch_.push_back({0, {}});
  cellBoxes_.add(wanted.row);
  // From the last writer to the first: a writer supplies the part it covers, and the rest is left to the earlier
  // writers.
  for (std::size_t end = candidates_.size(); end > 0 && !splitScratch_.empty();) {
    std::size_t begin = end - 1;
    while (begin > 0 && sources.contribution[candidates_[begin - 1]] == sources.contribution[candidates_[begin]]) {
      --begin;
    }
    for (std::size_t i = begin; i < end; ++i) {
      splitCells(sources, candidates_[i], splitScratch_);
    }
    std::size_t numLeft = 0;
    for (Cell& cell : splitScratch_) {
      if (!cell.stocks.empty()) {
        cells_.push_back(std::move(cell));
      } else if (&splitScratch_[numLeft++] != &cell) {
        splitScratch_[numLeft - 1] = std::move(cell);
      }
    }
    splitScratch_.resize(numLeft);
    end = begin;
  }
}

Assigner::Tier Assigner::tierOf(std::span<const Holder> holders, const WantedBox& wanted) const {
  if (holders.size() == 1) {
    return {holders.data(), 1};
  }
  const RankPlaces& places = index_.places();
  const std::int32_t place = places.placeOf(wanted.rank);
  const auto firstFrom = [&holders](std::int32_t bound) {
    return std::partition_point(holders.begin(), holders.end(),
                                [bound](const Holder& holder) { return holder.place < bound; });
  };
  const auto at = firstFrom(place);
  if (at != holders.end() && at->place == place) {
    return {&*at, 1};
  }
  const auto hostBegin = firstFrom(places.hostBegin(wanted.rank));
  const auto hostEnd = firstFrom(places.hostEnd(wanted.rank));
  if (hostBegin != hostEnd) {
    const std::int32_t nonHoldersBefore =
        (place - places.hostBegin(wanted.rank)) - static_cast<std::int32_t>(at - hostBegin);
    return {&*hostBegin, static_cast<std::uint32_t>(hostEnd - hostBegin), static_cast<std::uint32_t>(nonHoldersBefore)};
  }
  const std::int32_t nonHoldersBefore = place - static_cast<std::int32_t>(at - holders.begin());
  return {holders.data(), static_cast<std::uint32_t>(holders.size()), static_cast<std::uint32_t>(nonHoldersBefore)};
}

// One holder per rank, by place.
std::span<const Holder> Assigner::unionOfHolders(const TensorSources& sources, std::span<const std::uint32_t> stocks) {
  std::vector<Holder>& all = unions_.emplace_back();
  for (const std::uint32_t stock : stocks) {
    const auto holders = sources.holdersOf(stock);
    all.insert(all.end(), holders.begin(), holders.end());
  }
  std::stable_sort(all.begin(), all.end(), [](const Holder& a, const Holder& b) { return a.place < b.place; });
  all.erase(std::unique(all.begin(), all.end(), [](const Holder& a, const Holder& b) { return a.place == b.place; }),
            all.end());
  return all;
}

void Assigner::chooseTiers(const TensorSources& sources, const WantedBox& wanted) {
  for (const Cell& cell : cells_) {
    TieredCell tiered{cell.box, static_cast<std::uint32_t>(tiers_.size()), 0, 0};
    const std::span<const std::uint32_t> stocks(cell.stocks);
    for (std::size_t begin = 0; begin < stocks.size();) {
      std::size_t end = begin + 1;
      while (end < stocks.size() && sources.contribution[stocks[end]] == sources.contribution[stocks[begin]]) {
        ++end;
      }
      if (end - begin == 1) {
        tiers_.push_back(tierOf(sources.holdersOf(stocks[begin]), wanted));
        tiers_.back().holderSet = sources.holderSet[stocks[begin]];
      } else {
        tiers_.push_back(tierOf(unionOfHolders(sources, stocks.subspan(begin, end - begin)), wanted));
      }
      begin = end;
    }
    tiered.numTiers = static_cast<std::uint32_t>(tiers_.size()) - tiered.firstTier;
    tiered_.push_back(tiered);
  }
}

bool Assigner::sameTiers(const TieredCell& a, const TieredCell& b) const {
  if (a.numTiers != b.numTiers) {
    return false;
  }
  for (std::uint32_t t = 0; t < a.numTiers; ++t) {
    const Tier& x = tiers_[a.firstTier + t];
    const Tier& y = tiers_[b.firstTier + t];
    if (x.numHolders != y.numHolders || (x.numHolders > 1 && x.holderSet != y.holderSet)) {
      return false;
    }
    for (std::uint32_t h = 0; x.holders != y.holders && h < x.numHolders; ++h) {
      if (x.holders[h].rank != y.holders[h].rank || x.holders[h].input != y.holders[h].input ||
          x.holders[h].slice != y.holders[h].slice) {
        return false;
      }
    }
  }
  return true;
}

void Assigner::nameKinds() {
  std::unordered_multimap<std::uint64_t, std::uint32_t> cellOfHash;
  for (std::uint32_t i = 0; i < tiered_.size(); ++i) {
    TieredCell& cell = tiered_[i];
    Hasher hasher;
    for (std::uint32_t t = cell.firstTier; t < cell.firstTier + cell.numTiers; ++t) {
      hasher.add(static_cast<std::uint64_t>(tiers_[t].numHolders));
      hasher.add(static_cast<std::uint64_t>(tiers_[t].holders[0].rank) << 32 |
                 static_cast<std::uint32_t>(tiers_[t].holders[0].slice));
    }
    cell.kind = i;
    const auto [begin, end] = cellOfHash.equal_range(hasher.value());
    const auto same =
        std::find_if(begin, end, [&](const auto& entry) { return sameTiers(tiered_[entry.second], cell); });
    if (same != end) {
      cell.kind = same->second;
    } else {
      cellOfHash.emplace(hasher.value(), i);
    }
  }
}

// Merges along each dimension, innermost first: cells of one kind that touch and are equal in all other dimensions
// become one cell.
void Assigner::mergeCells(int numDims) {
  for (int d = numDims - 1; d >= 0; --d) {
    const auto equalBut = [&](const TieredCell& a, const TieredCell& b) {
      const std::int64_t* x = cellBoxes_[a.box];
      const std::int64_t* y = cellBoxes_[b.box];
      for (int i = 0; i < 2 * numDims; ++i) {
        if (i != d && i != numDims + d && x[i] != y[i]) {
          return x[i] < y[i] ? -1 : 1;
        }
      }
      return 0;
    };
    std::sort(tiered_.begin(), tiered_.end(), [&](const TieredCell& a, const TieredCell& b) {
      if (a.kind != b.kind) {
        return a.kind < b.kind;
      }
      const int order = equalBut(a, b);
      return order != 0 ? order < 0 : cellBoxes_[a.box][d] < cellBoxes_[b.box][d];
    });
    std::size_t kept = 0;
    for (std::size_t i = 1; i < tiered_.size(); ++i) {
      TieredCell& last = tiered_[kept];
      if (last.kind == tiered_[i].kind && equalBut(last, tiered_[i]) == 0 &&
          cellBoxes_[last.box][numDims + d] == cellBoxes_[tiered_[i].box][d]) {
        cellBoxes_[last.box][numDims + d] = cellBoxes_[tiered_[i].box][numDims + d];
      } else {
        tiered_[++kept] = tiered_[i];
      }
    }
    tiered_.resize(kept + 1);
  }
}

const Pieces& Assigner::finish(const TensorSources& sources, const WantedBox& wanted, bool mayMerge) {
  chooseTiers(sources, wanted);
  if (tiered_.size() > 1) {
    if (mayMerge) {
      nameKinds();
      mergeCells(sources.numDims);
    }
    // Disjoint boxes have different begins.
    std::sort(tiered_.begin(), tiered_.end(), [&](const TieredCell& a, const TieredCell& b) {
      const std::int64_t* x = cellBoxes_[a.box];
      const std::int64_t* y = cellBoxes_[b.box];
      return std::lexicographical_compare(x, x + sources.numDims, y, y + sources.numDims);
    });
  }
  emit(sources, wanted);
  return pieces_;
}

std::uint32_t Assigner::nextTurn(const Tier& tier, const WantedBox& wanted) {
  if (tier.numHolders == 1) {
    return 0;
  }
  if (tier.holderSet == kNoHolderSet) {
    return tier.turn + static_cast<std::uint32_t>(wanted.output);
  }
  std::uint32_t& boxes = boxesOfSet_[tier.holderSet];
  if (boxes == 0) {
    touchedSets_.push_back(tier.holderSet);
  }
  return tier.turn + boxes++;
}

void Assigner::emit(const TensorSources& sources, const WantedBox& wanted) {
  for (const TieredCell& cell : tiered_) {
    const std::int64_t* row = cellBoxes_[cell.box];
    std::uint32_t maxHolders = 1;
    turns_.clear();
    for (std::uint32_t t = cell.firstTier; t < cell.firstTier + cell.numTiers; ++t) {
      maxHolders = std::max(maxHolders, tiers_[t].numHolders);
      turns_.push_back(nextTurn(tiers_[t], wanted));
    }
    Cut cut;
    if (maxHolders > 1) {
      const std::uint64_t bytes = rowElements(sources.numDims, row) * sources.elemBytes(cell.numTiers);
      if (bytes >= kCutBytes) {
        cut = chooseCut(sources.numDims, row,
                        static_cast<std::uint32_t>(std::min<std::uint64_t>(maxHolders, bytes / kMinPartBytes)));
      }
    }
    for (std::uint32_t part = 0; part < cut.numParts; ++part) {
      BoxRow partRow;
      partOf(sources.numDims, row, cut, part, partRow.data());
      pieces_.pieces.push_back({static_cast<std::uint32_t>(pieces_.boxes.size()),
                                static_cast<std::uint32_t>(pieces_.sources.size()), cell.numTiers});
      pieces_.boxes.add(partRow.data());
      for (std::uint32_t t = 0; t < cell.numTiers; ++t) {
        const Tier& tier = tiers_[cell.firstTier + t];
        // Fewer parts than holders: the next box goes on where this one ends.
        const std::uint64_t first =
            cut.numParts < tier.numHolders ? std::uint64_t{turns_[t]} * cut.numParts : turns_[t];
        const Holder& holder = tier.holders[(first + part) % tier.numHolders];
        pieces_.sources.push_back({holder.rank, holder.input, holder.slice});
      }
    }
  }
}

}  // namespace shardwire::internal
