#include "backend/transport/endpoint.h"

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

}  // namespace shardwire::internal
