// The grid of covers shows at one look whether a tensor has no element twice. If some element may be there twice, each
// stock looks up the stocks that meet it. A pair of different contributions is listed once, by the number of the first
// stock, so every rank writes the same text.
#include "ops/plan/find_overlaps.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/plan/slice_math.h"

namespace shardwire::internal {

namespace {

constexpr std::size_t kMaxPairs = 8;

std::string inputText(const TensorSources& sources, std::uint32_t stock) {
  const Holder& holder = sources.holdersOf(stock).front();
  return fmt::format("rank {}, inputs[{}] {}", holder.rank, holder.input,
                     toString(sliceOf(sources.numDims, sources.stocks[stock])));
}

}  // namespace

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
        if (++numPairs <= kMaxPairs) {
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
  const std::string more = numPairs > kMaxPairs ? fmt::format("; and {} more", numPairs - kMaxPairs) : "";
  return Status(
      StatusCode::kInvalidArgument,
      fmt::format("compile_op{}: {} pair{} of inputs overlap, and overlap is 'error': {}{}. Give inputs that do not, a "
                  "reduction "
                  "that combines them, overlap='last' to take the last, or overlap='any' where they are equal",
                  spec.name.empty() ? "" : fmt::format(" '{}'", spec.name), numPairs, numPairs == 1 ? "" : "s", listed,
                  more));
}

}  // namespace shardwire::internal
