// Stands for what is being written in branches of its own; each takes its part out of here.
#include "backend/transport/endpoint.h"

namespace shardwire::internal {

const char* transportKindName(TransportKind kind) {
  constexpr const char* kNames[] = {"shm", "rdma", "mpi", "tcp"};
  return kNames[static_cast<std::size_t>(kind)];
}
Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self&) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Status Link::send(std::string_view, Deadline) {
  return {StatusCode::kUnsupported, "not in this build"};
}
Result<std::string> Link::receive(Deadline) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Result<LinkListener> LinkListener::create(const Options&, int) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Result<std::vector<LinkListener::Accepted>> LinkListener::accept(const RandomId&, Rank, int, Deadline) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}
Result<Link> dialLink(std::span<const NetAddress>, const RandomId&, const LinkHello&, const Options&, Deadline) {
  return Status{StatusCode::kUnsupported, "not in this build"};
}

}  // namespace shardwire::internal
