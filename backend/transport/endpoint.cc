#include "backend/transport/endpoint.h"

#include <limits>

namespace shardwire::internal {

const char* transportKindName(TransportKind kind) {
  switch (kind) {
    case TransportKind::kShm:
      return "shm";
    case TransportKind::kRdma:
      return "rdma";
    case TransportKind::kMpi:
      return "mpi";
    case TransportKind::kTcp:
      return "tcp";
  }
  return "?";
}

ReadLimits wireReadLimits(OrdinaryPath path, std::size_t minEdgeBytes, std::size_t minRunBytes) {
  switch (path) {
    case OrdinaryPath::kStaged:
      return {.isWire = true, .minEdgeBytes = std::numeric_limits<std::size_t>::max(), .minRunBytes = 0};
    case OrdinaryPath::kCrossMemory:
      return {.isWire = true, .minEdgeBytes = 0, .minRunBytes = 0};
    case OrdinaryPath::kAuto:
      break;
  }
  return {.isWire = true, .minEdgeBytes = minEdgeBytes, .minRunBytes = minRunBytes, .minLocalRunBytes = minRunBytes};
}

}  // namespace shardwire::internal
