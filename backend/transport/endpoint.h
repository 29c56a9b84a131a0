// One way of joining this rank to others over a wire, before any peer is joined. The bootstrap makes one endpoint for each transport that
// the options allow, publishes what it says of itself, and asks it to connect to the peers that chose it. shm, which is no wire, has its
// own.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/transport/link.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"
#include "shardwire/storage_watch.h"

namespace shardwire::internal {

// In the order of preference.
enum class TransportKind : std::uint8_t { kShm = 0, kRdma = 1, kMpi = 2, kTcp = 3 };
inline constexpr int kNumTransportKinds = 4;
const char* transportKindName(TransportKind kind);  // "shm", "rdma", "mpi", "tcp"

struct Self {
  Rank rank = 0;
  int worldSize = 1;
  std::string host;
  const Options* options = nullptr;        // outlives the endpoint and its connections
  const StorageWatch* storages = nullptr;  // of those that TensorView::storage names; likewise; null: nobody knows
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // What the peers must know of this rank; opaque bytes, at most 4 KiB. Published in the store.
  virtual std::string address() const = 0;
  // Empty when, as far as the two addresses tell, this transport joins the two ranks; otherwise why not. Both ranks come to the same
  // answer.
  virtual std::string whyNot(std::string_view peerAddress) const = 0;
  // Joins this rank and `peer`: both call it at the same time, each with its end of one link. `who`: "rank 3 (pid 7 on host b)", for
  // messages. Connections may not be polled before takeWire().
  virtual Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                                      const std::string& who, Deadline deadline) = 0;
  // After the last connect(): what the connections share, even when there are none. The endpoint may go afterwards.
  virtual std::unique_ptr<Wire> takeWire() = 0;
};

// Each is kUnsupported, saying why, on a machine that lacks what it needs: then the rank is joined by the others.
Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeMpiEndpoint(const Self& self);

}  // namespace shardwire::internal
