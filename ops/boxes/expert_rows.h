// Rows of tokens on their way to experts and back. Each token is chosen for top-k experts. A *choice* is a token and
// one of its experts: number token * topK + j. A source lists its choices by expert, and within an expert by number:
// the source's *order*. The rows for one expert from one source are a *chunk*: consecutive in the source's order, and
// consecutive at the expert. Pure functions over memory of the caller; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwire/export.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr std::int64_t kNoExpert = -1;  // an id that is no choice

// Lists the choices by expert. ids: numTokens * topK. counts: one for each expert. order: the choices; the entries
// behind the last choice are not written. places: for each number of a choice the position in the order, or -1. Returns
// the number of the first id that is neither an expert nor kNoExpert, or -1; then nothing else is valid.
SHARDWIRE_EXPORT std::int64_t sortByExpert(std::span<const std::int64_t> ids, std::span<std::int64_t> counts,
                                           std::span<std::int32_t> order, std::span<std::int32_t> places);

struct ExpertChunk {
  std::int64_t first = 0;  // position in the source's order
  std::int64_t rows = 0;
  std::int64_t at = 0;  // row among the rows of all experts of this rank

  bool operator==(const ExpertChunk&) const = default;
};

// The chunks for the experts from `begin` to `end`: of each expert all sources, in the order of their ranks. counts: of
// each source, `stride` numbers apart, the rows for each expert.
SHARDWIRE_EXPORT std::vector<ExpertChunk> chunksOf(const std::int64_t* counts, std::int64_t stride,
                                                   std::int64_t numSources, std::int64_t begin, std::int64_t end);

// One source of rows. order: null where the rows lie in the order already; otherwise row order[p] / topK is at p.
struct RowSource {
  const std::byte* rows = nullptr;
  const std::int32_t* order = nullptr;
};
// Copies all chunks to `out`. chunks: as of chunksOf(), for sources.size() sources.
SHARDWIRE_EXPORT void gatherRows(std::byte* out, std::size_t rowBytes, std::span<const RowSource> sources,
                                 std::span<const ExpertChunk> chunks, std::int64_t topK);

// Copies the chunks back: each to the source's position, in targets[source]; null: the source gets nothing.
SHARDWIRE_EXPORT void returnRows(std::span<std::byte* const> targets, const std::byte* rows, std::size_t rowBytes,
                                 std::span<const ExpertChunk> chunks);

// The rows of a source's choices: at `rows` in the source's order, but the choices of `ownChunks` (which need not be
// sorted) at their `at` in `ownRows`.
struct ReturnedRows {
  const std::byte* rows = nullptr;
  const std::byte* ownRows = nullptr;
  std::span<const ExpertChunk> ownChunks;
  std::size_t rowBytes = 0;
};
// out = for each token the sum over its choices of weight * row, in float32, rounded once; zero for a token without a
// choice. places: of sortByExpert(). weights: one for each choice, or null: 1. Precondition: the dtype is float32,
// float16 or bfloat16.
SHARDWIRE_EXPORT void sumRows(std::byte* out, const ReturnedRows& returned, std::span<const std::int32_t> places,
                              const float* weights, std::int64_t topK, DType dtype);

}  // namespace shardwire::internal
