// Messages of the request lane of an RDMA connection: requests to fetch, and refusals. Little-endian, fixed width
// (docs/rdma.md).
#pragma once

#include <array>
#include <cstdint>

#include "backend/transport/rdma/rdma_device.h"

namespace shardwire::internal {

enum class RequestKind : std::uint32_t { kFetch = 1, kRefusal = 2 };

// Followed by numRuns RunRecords (kFetch) or by a text of numRuns bytes (kRefusal).
struct RequestHeader {
  RequestKind kind = RequestKind::kFetch;
  std::uint32_t id = 0;     // the immediate that ends each queue's part
  std::uint32_t space = 0;  // the owner's exposure
  std::uint32_t numRuns = 0;
  // The payload queue pairs to use: the bytes of all runs, in order, are cut into numQueues equal parts.
  std::uint32_t firstQueue = 0;
  std::uint32_t numQueues = 1;
  std::array<std::uint32_t, kMaxRails> remoteKeys{};  // of the requester's memory, by queue pair
};
struct RunRecord {
  std::uint64_t remote = 0;  // in the owner's memory
  std::uint64_t local = 0;   // in the requester's memory
  std::uint64_t bytes = 0;
};
static_assert(sizeof(RequestHeader) == 40 && sizeof(RunRecord) == 24);

// Where part `part` of `numParts` begins, in bytes of all runs together.
constexpr std::uint64_t partBegin(std::uint64_t totalBytes, std::uint32_t part, std::uint32_t numParts) {
  return part == numParts ? totalBytes : (totalBytes / numParts * part) & ~std::uint64_t{4095};
}

}  // namespace shardwire::internal
