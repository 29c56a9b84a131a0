#include "backend/transport/endpoint.h"

#include <fmt/format.h>

#include <array>
#include <limits>

namespace shardwire::internal {
namespace {

// The interval at which a pair checks the clock while it is being joined.
constexpr Duration kJoiningLook = std::chrono::milliseconds(100);

}  // namespace

const char* transportKindName(TransportKind kind) {
  constexpr std::array<const char*, kNumTransportKinds> kNames = {"shm", "rdma", "mpi", "tcp"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string whyOutOfReach(TransportKind kind, const Place& a, const Place& b) {
  if (kind != TransportKind::kShm) {
    return {};  // a network may lead anywhere
  }
  if (a.bootId != b.bootId) {
    return fmt::format("they run on different hosts ({} and {}; boot ids {} and {})", a.host, b.host, a.bootId,
                       b.bootId);
  }
  if (a.uid != b.uid) {
    return fmt::format("it joins processes of one user, and they run as users {} and {}", a.uid, b.uid);
  }
  if (a.networkNamespace != b.networkNamespace) {
    return "they run in different network namespaces (containers of one host must share one: --network=host or one "
           "pod)";
  }
  if (!a.kernel.empty() && !b.kernel.empty() && a.kernel != b.kernel) {
    return "SHARDWIRE_HOST_ID calls their hosts one, but they run on different kernels or in different network "
           "namespaces";
  }
  return {};
}

Result<std::unique_ptr<Connection>> Endpoint::connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                                      const std::string& who, const WaitLimit& limit) {
  const std::unique_ptr<Joining> joining = begin(std::move(link), peer, isDialer, peerAddress, who);
  SW_CHECK(joining != nullptr);
  while (true) {
    if (auto outcome = joining->step(); outcome.has_value()) {
      return std::move(*outcome);
    }
    std::vector<pollfd> entries;
    joining->appendSockets(&entries);
    const auto ready = limit.sooner(Clock::now() + kJoiningLook).poll(entries);
    if (!ready.isOk()) {
      joining->giveUp(ready.status());
    } else if (limit.isOver()) {
      joining->giveUp({StatusCode::kTimeout, joining->awaited() + ": it did not come in time"});
    }
  }
}

ReadLimits wireReadLimits(OrdinaryPath path, std::size_t minEdgeBytes, std::size_t minRunBytes) {
  switch (path) {
    case OrdinaryPath::kStaged:
      return {.isWire = true, .minEdgeBytes = ReadLimits::kNone, .minRunBytes = 0};
    case OrdinaryPath::kCrossMemory:
      return {.isWire = true, .minEdgeBytes = 0, .minRunBytes = 0};
    case OrdinaryPath::kAuto:
      break;
  }
  return {.isWire = true, .minEdgeBytes = minEdgeBytes, .minRunBytes = minRunBytes, .minLocalRunBytes = minRunBytes};
}

}  // namespace shardwire::internal
