// One way of joining this rank to others, before any peer is joined. The bootstrap makes one endpoint for each transport that the options
// allow, publishes what it says of itself, and asks it to join the peers that chose it. There are two ways: over a line, at whose ends both
// ranks agree at the same time (rdma, mpi, tcp), or by what the peer published alone, each rank for itself (shm).
//
// Nothing here says when a peer is joined, or which of the two ranks began, or how many groups use the connection. Threads: one at a time.
#pragma once

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/fabric/link.h"
#include "backend/fabric/rank_bell.h"
#include "backend/transport/late_links.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"
#include "shardwire/storage_watch.h"

namespace shardwire::internal {

// In the order of preference.
enum class TransportKind : std::uint8_t { kShm = 0, kRdma = 1, kMpi = 2, kTcp = 3 };
inline constexpr int kNumTransportKinds = 4;
const char* transportKindName(TransportKind kind);  // "shm", "rdma", "mpi", "tcp"

// When a wire fetches: from these on, as measured for it, unless SHARDWIRE_ORDINARY_PATH forces frames (staged) or fetches (cross_memory).
ReadLimits wireReadLimits(OrdinaryPath path, std::size_t minEdgeBytes, std::size_t minRunBytes);

// Where a rank runs.
struct Place {
  std::string host;    // for messages
  std::string bootId;  // of the running kernel
  std::uint64_t networkNamespace = 0;
  std::uint32_t uid = 0;
  std::string kernel;  // and network namespace as they are, whatever the user calls the host; empty: not known
};
// Why a transport of this kind does not reach from one place to the other, whatever the two ranks have; empty: it may. `a` is the lower
// rank's place, so that both ranks say the same.
std::string whyOutOfReach(TransportKind kind, const Place& a, const Place& b);

struct Self {
  Rank rank = 0;
  int worldSize = 1;
  std::string host;
  const Options* options = nullptr;        // outlives the endpoint and its connections
  const StorageWatch* storages = nullptr;  // of those that TensorView::storage names; likewise; null: nobody knows
};

// Two ranks that agree over a line on how they are joined, as one of them sees it: step by step, for those who must not wait. One thread at
// a time.
class Joining {
 public:
  using Outcome = Result<std::unique_ptr<Connection>>;
  virtual ~Joining() = default;
  // Goes on without waiting. Nothing: it is under way. Both ends come to the same outcome, unless one of them ends; from here on the
  // connection may be polled. Errors as those of Endpoint::connect().
  virtual std::optional<Outcome> step() = 0;
  // What is to be looked at before the next step: a readiness, or an end, of one of these. Some of what it waits for is over after a while:
  // it is stepped ten times a second, too.
  virtual void appendSockets(std::vector<pollfd>* entries) const = 0;
  // "waiting for the second socket's proof"
  virtual std::string awaited() const = 0;
  // Ends it and tells the peer why. That is the outcome, of the next step() or, while the peer is told, a later one; said again, it is not
  // waited for that.
  virtual void giveUp(const Status& why) = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // What the peers must know of this rank beside its place; opaque bytes, at most 4 KiB. Published in the store.
  virtual std::string address() const = 0;
  // Empty when, as far as the two addresses tell, this transport joins the two ranks; otherwise why not. Both ranks come to the same
  // answer.
  virtual std::string whyNot(std::string_view peerAddress) const = 0;
  // Whether peers are joined by connect() or, each rank for itself, by attach() and isMet(). In all of them `who` is "rank 3 (pid 7 on host
  // b)", for messages, and kInvalidArgument says that this transport could join the two, but not as the user's settings want: no other is
  // to be tried, and both ends say so.
  virtual bool needsLine() const { return true; }
  // Joins this rank and `peer`: both call it at the same time, each with its end of one line (backend/bootstrap/doors.h). Connections may
  // not be polled before takeWire(). kTimeout before the limit is over: the peer took this rank for a stranger, since it was slow to speak;
  // it may dial again.
  virtual Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                                      const std::string& who, const WaitLimit& limit);
  // Whether begin() is there, and may be called after takeWire(), when connections are polled already.
  virtual bool mayJoinLate() const { return false; }
  // connect() for those who must not wait.
  virtual std::unique_ptr<Joining> begin(Link link, Rank peer, bool isDialer, std::string_view peerAddress, const std::string& who) {
    static_cast<void>(link), static_cast<void>(peer), static_cast<void>(isDialer), static_cast<void>(peerAddress), static_cast<void>(who);
    return nullptr;
  }
  // Tells who dialed why it is not joined, in place of begin(). Waits for nothing: what does not reach it, it hears when it dials again.
  virtual void refuse(Link link, const Status& why) { static_cast<void>(link), static_cast<void>(why); }
  // This rank's half of being joined to `peer`. The connection may be used once isMet() is true.
  virtual Result<std::unique_ptr<Connection>> attach(Rank peer, std::string_view peerAddress, const std::string& who,
                                                     const WaitLimit& limit) {
    static_cast<void>(peer), static_cast<void>(peerAddress), static_cast<void>(who), static_cast<void>(limit);
    return Status{StatusCode::kInternal, "this transport needs a line"};
  }
  // Whether the peer has done its half of a connection that attach() gave. It rings this rank's bell when it does.
  virtual Result<bool> isMet(Connection& connection) {
    static_cast<void>(connection);
    return true;
  }
  // Where the peers that this transport joins ring this rank; null: they do not ring it by themselves.
  virtual std::shared_ptr<RankBell> bell() { return nullptr; }
  // Of a transport that needs no line: joins these peers when an operation first needs them. The endpoint may go afterwards.
  virtual std::unique_ptr<LateLinks> joinLate(std::vector<LatePeer> peers) {
    static_cast<void>(peers);
    return nullptr;
  }
  // After the last connect(): what the connections share, even when there are none. Null: they need no polling. The endpoint may go
  // afterwards.
  virtual std::unique_ptr<Wire> takeWire() = 0;
};

// Each is kUnsupported, saying why, on a machine that lacks what it needs: then the rank is joined by the others.
// kSystem of shared memory: it is there, and cannot be set up.
Result<std::unique_ptr<Endpoint>> makeShmEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeMpiEndpoint(const Self& self);

}  // namespace shardwire::internal
