// Stands for what is being written in branches of its own; each takes its part out of here.
#include "backend/transport/endpoint.h"

namespace shardwire::internal {

Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Result<std::unique_ptr<Endpoint>> makeMpiEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}

}  // namespace shardwire::internal
