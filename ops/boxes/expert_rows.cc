// Sorting is a counting sort. Rows are copied by the kernels of ops/reduce, past the caches where a call moves much.
// Sums go token by token, in blocks of lanes that stay in L1: each row is decoded to float32, scaled and added, and the
// sum is encoded once.
#include "ops/boxes/expert_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/boxes/copy_box.h"
#include "ops/boxes/plain_floats.h"
#include "ops/reduce/isa_kernels.h"
#include "shardwire/status.h"

namespace shardwire::internal {

namespace {

// Lanes summed at once: the accumulators and a decoded row stay in L1.
constexpr std::size_t kBlockLanes = 1024;
// From this many bytes on, sources are probably cold, and are fetched ahead.
constexpr std::size_t kAheadFromBytes = std::size_t{256} << 10;

RowStore storeFor(std::size_t totalBytes) {
  return totalBytes >= kStreamFromBytes  ? largeStore()
         : totalBytes >= kAheadFromBytes ? RowStore::kAhead
                                         : RowStore::kPlain;
}

std::size_t totalRows(std::span<const ExpertChunk> chunks) {
  std::int64_t rows = 0;
  for (const ExpertChunk& chunk : chunks) {
    rows += chunk.rows;
  }
  return static_cast<std::size_t>(rows);
}

const ReduceKernel& sumKernel(DType dtype) {
  return kernels().reduce[static_cast<int>(dtype)][static_cast<int>(ReduceOp::kSum)];
}

}  // namespace

std::int64_t sortByExpert(std::span<const std::int64_t> ids, std::span<std::int64_t> counts,
                          std::span<std::int32_t> order, std::span<std::int32_t> places) {
  std::fill(counts.begin(), counts.end(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kNoExpert) {
      continue;
    }
    if (ids[i] < 0 || ids[i] >= static_cast<std::int64_t>(counts.size())) {
      return static_cast<std::int64_t>(i);
    }
    ++counts[static_cast<std::size_t>(ids[i])];
  }
  std::vector<std::int32_t> next(counts.size());
  std::int64_t before = 0;
  for (std::size_t expert = 0; expert < counts.size(); ++expert) {
    next[expert] = static_cast<std::int32_t>(before);
    before += counts[expert];
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    places[i] = ids[i] == kNoExpert ? -1 : next[static_cast<std::size_t>(ids[i])]++;
    if (places[i] >= 0) {
      order[static_cast<std::size_t>(places[i])] = static_cast<std::int32_t>(i);
    }
  }
  return -1;
}

std::vector<ExpertChunk> chunksOf(const std::int64_t* counts, std::int64_t stride, std::int64_t numSources,
                                  std::int64_t begin, std::int64_t end) {
  std::vector<ExpertChunk> chunks(static_cast<std::size_t>((end - begin) * numSources));
  for (std::int64_t source = 0; source < numSources; ++source) {
    const std::int64_t* const own = counts + source * stride;
    std::int64_t first = 0;
    for (std::int64_t expert = 0; expert < end; ++expert) {
      if (expert >= begin) {
        chunks[static_cast<std::size_t>((expert - begin) * numSources + source)] = {first, own[expert], 0};
      }
      first += own[expert];
    }
  }
  std::int64_t at = 0;
  for (ExpertChunk& chunk : chunks) {
    chunk.at = at;
    at += chunk.rows;
  }
  return chunks;
}

void gatherRows(std::byte* out, std::size_t rowBytes, std::span<const RowSource> sources,
                std::span<const ExpertChunk> chunks, std::int64_t topK) {
  const KernelTable& table = kernels();
  const RowStore store = storeFor(totalRows(chunks) * rowBytes);
  const auto bytes = static_cast<std::int64_t>(rowBytes);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const RowSource& source = sources[i % sources.size()];
    const ExpertChunk& chunk = chunks[i];
    std::byte* const to = out + chunk.at * bytes;
    if (source.order == nullptr) {
      table.copyRows(to, bytes, source.rows + chunk.first * bytes, bytes, rowBytes,
                     static_cast<std::size_t>(chunk.rows), store);
      continue;
    }
    for (std::int64_t row = 0; row < chunk.rows; ++row) {
      const std::int64_t token = source.order[chunk.first + row] / topK;
      table.copyRows(to + row * bytes, bytes, source.rows + token * bytes, bytes, rowBytes, 1, store);
    }
  }
  table.fence();
}

void returnRows(std::span<std::byte* const> targets, const std::byte* rows, std::size_t rowBytes,
                std::span<const ExpertChunk> chunks) {
  const KernelTable& table = kernels();
  const RowStore store = storeFor(totalRows(chunks) * rowBytes);
  const auto bytes = static_cast<std::int64_t>(rowBytes);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    std::byte* const target = targets[i % targets.size()];
    if (target != nullptr) {
      table.copyRows(target + chunks[i].first * bytes, bytes, rows + chunks[i].at * bytes, bytes, rowBytes,
                     static_cast<std::size_t>(chunks[i].rows), store);
    }
  }
  table.fence();
}

void sumRows(std::byte* out, const ReturnedRows& returned, std::span<const std::int32_t> places, const float* weights,
             std::int64_t topK, DType dtype) {
  SW_CHECK(dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16);
  const PlainFloats plain;
  const KernelTable& table = kernels();
  const ReduceKernel& kernel = sumKernel(dtype);
  const std::size_t elem = elementBytes(dtype);
  const std::size_t numLanes = returned.rowBytes / elem;
  std::vector<const std::byte*> rowAt(places.size());
  for (std::size_t p = 0; p < rowAt.size(); ++p) {
    rowAt[p] = returned.rows + p * returned.rowBytes;
  }
  for (const ExpertChunk& chunk : returned.ownChunks) {
    for (std::int64_t row = 0; row < chunk.rows; ++row) {
      rowAt[static_cast<std::size_t>(chunk.first + row)] =
          returned.ownRows + static_cast<std::size_t>(chunk.at + row) * returned.rowBytes;
    }
  }
  alignas(64) std::array<float, kBlockLanes> acc;
  alignas(64) std::array<float, kBlockLanes> decoded;
  const auto choices = static_cast<std::size_t>(topK);
  for (std::size_t token = 0; token * choices < places.size(); ++token) {
    for (std::size_t lane = 0; lane < numLanes; lane += kBlockLanes) {
      const std::size_t lanes = std::min(kBlockLanes, numLanes - lane);
      bool adds = false;
      for (std::size_t choice = token * choices; choice < (token + 1) * choices; ++choice) {
        if (places[choice] < 0) {
          continue;
        }
        const std::byte* stored = rowAt[static_cast<std::size_t>(places[choice])] + lane * elem;
        const void* values = stored;
        if (kernel.decode != nullptr) {
          kernel.decode(decoded.data(), stored, lanes, 0);
          values = decoded.data();
        }
        table.addScaled(acc.data(), values, weights == nullptr ? 1.0F : weights[choice], lanes, adds);
        adds = true;
      }
      if (!adds) {
        std::fill_n(acc.begin(), lanes, 0.0F);
      }
      kernel.encode(out + token * returned.rowBytes + lane * elem, acc.data(), lanes, 0);
    }
  }
}

}  // namespace shardwire::internal
