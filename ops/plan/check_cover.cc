// The grid of covers shows at one look whether the inputs cover all of a tensor, and whether they cover no element
// twice. Only where the grid shows a gap, the stocks that meet an output box are cut out of the box one by one; the
// remaining boxes are listed rank by rank. Only where the grid shows an overlap, each stock looks up the stocks that
// meet it; a pair is listed once, by the number of the first stock. So every rank writes the same text.
#include "ops/plan/check_cover.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/plan/slice_math.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kMaxListed = 8;

// Leaves in `rest` what no stock covers of the box. Boxes of `rest` are disjoint.
void uncoveredParts(const TensorSources& sources, const std::int64_t* row, BoxList& rest, BoxList& scratch) {
  rest.reset(sources.numDims);
  rest.add(row);
  std::vector<std::uint32_t> stocks;
  sources.search.forEachOverlap(row, [&stocks](std::uint32_t stock) { stocks.push_back(stock); });
  std::sort(stocks.begin(), stocks.end());  // so the text does not depend on the search
  for (const std::uint32_t stock : stocks) {
    if (rest.empty()) {
      return;
    }
    cutOut(rest, sources.stocks[stock], scratch);
    std::swap(rest, scratch);
  }
}

bool mayHaveGap(const TensorSources& sources, const std::int64_t* row) {
  return !sources.grid.isUsable() || sources.grid.coverOf(row).hasGap;
}

// Ok, or kGap listing the first uncovered regions of all ranks' outputs.
Status checkGaps(const GlobalSpec& spec, const SourceIndex& index) {
  std::vector<bool> isCovered;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    isCovered.push_back(index[static_cast<std::int32_t>(t)].grid.coversAll(spec.tensors[t].shape));
  }
  std::size_t numRegions = 0;
  std::string listed;
  BoxList rest;
  BoxList scratch;
  for (std::size_t rank = 0; rank < spec.ranks.size(); ++rank) {
    const std::vector<LocalTensor>& outputs = spec.ranks[rank].outputs;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (isCovered[static_cast<std::size_t>(outputs[o].tensor)]) {
        continue;
      }
      const TensorSources& sources = index[outputs[o].tensor];
      for (const PlacedSlice& placed : outputs[o].slices) {
        BoxRow row;
        rowOf(placed.slice, row.data());
        if (isEmpty(placed.slice) || !mayHaveGap(sources, row.data())) {
          continue;
        }
        uncoveredParts(sources, row.data(), rest, scratch);
        for (std::size_t i = 0; i < rest.size(); ++i) {
          if (++numRegions <= kMaxListed) {
            const std::string& name = spec.tensors[static_cast<std::size_t>(outputs[o].tensor)].name;
            listed += fmt::format("{}rank {}, outputs[{}]{} {}", listed.empty() ? "" : "; ", rank, o,
                                  name.empty() ? "" : fmt::format(", tensor '{}',", name),
                                  toString(sliceOf(sources.numDims, rest[i])));
          }
        }
      }
    }
  }
  if (numRegions == 0) {
    return Status::ok();
  }
  const std::string more = numRegions > kMaxListed ? fmt::format("; and {} more", numRegions - kMaxListed) : "";
  return Status(StatusCode::kGap, fmt::format("compile_op{}: no input covers {} region{} of the outputs: {}{}. Give "
                                              "inputs that cover them, shrink the outputs, or pass "
                                              "allow_gaps=True to leave these elements as they are",
                                              spec.name.empty() ? "" : fmt::format(" '{}'", spec.name), numRegions,
                                              numRegions == 1 ? "" : "s", listed, more));
}

std::string inputText(const TensorSources& sources, std::uint32_t stock) {
  const Holder& holder = sources.holdersOf(stock).front();
  return fmt::format("rank {}, inputs[{}] {}", holder.rank, holder.input,
                     toString(sliceOf(sources.numDims, sources.stocks[stock])));
}

// Ok, or kInvalidArgument listing the first pairs of overlapping inputs, with both regions and ranks. Tensors with a
// reduction are left out, and so are inputs of one replica class: these are equal.
Status checkOverlaps(const GlobalSpec& spec, const SourceIndex& index) {
  std::size_t numPairs = 0;
  std::string listed;
  std::vector<std::uint32_t> others;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    const TensorSources& sources = index[static_cast<std::int32_t>(t)];
    if (sources.reduction != ReduceOp::kNone || !sources.grid.hasOverlap()) {
      continue;
    }
    for (std::uint32_t stock = 0; stock < sources.stocks.size(); ++stock) {
      others.clear();
      sources.search.forEachOverlap(sources.stocks[stock], [&](std::uint32_t other) {
        if (other > stock && sources.contribution[other] != sources.contribution[stock]) {
          others.push_back(other);
        }
      });
      std::sort(others.begin(), others.end());  // so the text does not depend on the search
      for (const std::uint32_t other : others) {
        if (++numPairs <= kMaxListed) {
          const std::string& name = spec.tensors[t].name;
          listed += fmt::format("{}{}{} and {}", listed.empty() ? "" : "; ",
                                name.empty() ? "" : fmt::format("tensor '{}': ", name), inputText(sources, stock),
                                inputText(sources, other));
        }
      }
    }
  }
  if (numPairs == 0) {
    return Status::ok();
  }
  const std::string more = numPairs > kMaxListed ? fmt::format("; and {} more", numPairs - kMaxListed) : "";
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("compile_op{}: {} pair{} of inputs overlap, and overlap is 'error': {}{}. Give inputs that do not, a "
                  "reduction "
                  "that combines them, overlap='last' to take the last, or overlap='any' where they are equal",
                  spec.name.empty() ? "" : fmt::format(" '{}'", spec.name), numPairs, numPairs == 1 ? "" : "s", listed,
                  more));
}

}  // namespace

Status checkCover(const GlobalSpec& spec, const SourceIndex& index) {
  if (spec.overlap == Overlap::kError) {
    SW_RETURN_IF_ERROR(checkOverlaps(spec, index));
  }
  return spec.allowGaps ? Status::ok() : checkGaps(spec, index);
}

}  // namespace shardwire::internal
