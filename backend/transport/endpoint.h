// One way of joining this rank to peers, before any peer is joined. The bootstrap makes one endpoint for each transport
// that the options allow, publishes the endpoint's address, and asks the endpoint to join the peers that chose its
// transport. There are two ways: over a link, at whose ends both ranks agree at the same time (rdma, mpi, tcp), or by
// the peer's published address alone, each rank for itself (shm).
//
// Nothing here decides when a peer is joined, which of the two ranks begins, or how many groups use the connection.
// Threads: one at a time.
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

// The limits from which a wire fetches, as measured for the wire, unless SHARDWIRE_ORDINARY_PATH forces frames (staged)
// or fetches (cross_memory).
ReadLimits wireReadLimits(OrdinaryPath path, std::size_t minEdgeBytes, std::size_t minRunBytes);

// The place where a rank runs.
struct Place {
  std::string host;    // for messages
  std::string bootId;  // of the running kernel
  std::uint64_t networkNamespace = 0;
  std::uint32_t uid = 0;
  std::string kernel;  // the kernel and the network namespace, whatever the user calls the host; empty: not known
};
// Why a transport of this kind does not reach from one place to the other, whatever the two ranks have; empty: the
// transport may reach. `a` is the lower rank's place, so both ranks report the same text.
std::string whyOutOfReach(TransportKind kind, const Place& a, const Place& b);

struct Self {
  Rank rank = 0;
  int worldSize = 1;
  std::string host;
  const Options* options = nullptr;  // outlives the endpoint and its connections
  // For the storages named by TensorView::storage; outlives the endpoint and its connections; null: not known.
  const StorageWatch* storages = nullptr;
};

// Two ranks that agree over a link on how they are joined, seen from one of them: step by step, for callers that must
// not wait. One thread at a time.
class Joining {
 public:
  using Outcome = Result<std::unique_ptr<Connection>>;
  virtual ~Joining() = default;
  // Goes on without waiting. Nothing: the agreement is under way. Both ends reach the same outcome, unless one of them
  // ends; from here on the connection may be polled. Errors of Endpoint::connect().
  virtual std::optional<Outcome> step() = 0;
  // Adds the sockets to watch before the next step, for readiness or an end. Some waits end after a time without any
  // event: so step() is also called ten times a second.
  virtual void appendSockets(std::vector<pollfd>* entries) const = 0;
  // "waiting for the second socket's proof"
  virtual std::string awaited() const = 0;
  // Ends the agreement and reports the reason to the peer. The reason is the outcome, of the next step() or, while the
  // report is being sent, of a later step(). A second call does not wait for the report.
  virtual void giveUp(const Status& why) = 0;
};

class Endpoint {
 public:
  virtual ~Endpoint() = default;
  // The information that peers need about this rank beside its place; opaque bytes, at most 4 KiB. Published in the
  // store.
  virtual std::string address() const = 0;
  // Empty when, according to the two addresses, this transport joins the two ranks; otherwise why not. Both ranks reach
  // the same answer.
  virtual std::string whyNot(std::string_view peerAddress) const = 0;
  // Whether peers are joined by connect() or, each rank for itself, by attach() and isMet(). In all of these functions
  // `who` is "rank 3 (pid 7 on host b)", for messages. kInvalidArgument means that this transport could join the two
  // ranks, but against the user's settings: no other transport is tried, and both ends report this.
  virtual bool needsLink() const { return true; }
  // Joins this rank and `peer`: both call this at the same time, each with its end of one link
  // (backend/bootstrap/rank_links.h). Connections may not be polled before takeWire(). kTimeout before the limit is
  // over: the peer took this rank for a foreign process, since this rank was slow to speak; the rank may dial again.
  virtual Result<std::unique_ptr<Connection>> connect(Link link, Rank peer, bool isDialer, std::string_view peerAddress,
                                                      const std::string& who, const WaitLimit& limit);
  // Whether begin() is implemented, and may be called after takeWire(), when connections are polled already.
  virtual bool mayJoinLate() const { return false; }
  // connect() for callers that must not wait.
  virtual std::unique_ptr<Joining> begin(Link /*link*/, Rank /*peer*/, bool /*isDialer*/,
                                         std::string_view /*peerAddress*/, const std::string&) {
    return nullptr;
  }
  // Reports to a caller why the caller is not joined, in place of begin(). Does not wait: a caller that misses the
  // report gets it at the next dial.
  virtual void refuse(Link /*link*/, const Status& /*why*/) {}
  // Does this rank's half of being joined to `peer`. The connection may be used once isMet() is true.
  virtual Result<std::unique_ptr<Connection>> attach(Rank /*peer*/, std::string_view /*peerAddress*/,
                                                     const std::string&, const WaitLimit& /*limit*/) {
    return Status{StatusCode::kInternal, "this transport needs a link"};
  }
  // Whether the peer has done its half of a connection made by attach(). The peer rings this rank's bell at that time.
  virtual Result<bool> isMet(Connection& /*connection*/) { return true; }
  // The bell that the peers joined by this transport ring for this rank; null: these peers do not ring by themselves.
  virtual std::shared_ptr<RankBell> bell() { return nullptr; }
  // For a transport that needs no link: joins these peers when an operation first needs them. The endpoint may be
  // destroyed afterwards.
  virtual std::unique_ptr<LateLinks> joinLate(std::vector<LatePeer> /*peers*/) { return nullptr; }
  // After the last connect(): the wire that the connections share, even when there are none. Null: the connections need
  // no polling. The endpoint may be destroyed afterwards.
  virtual std::unique_ptr<Wire> takeWire() = 0;
};

// Each returns kUnsupported, with the reason, on a machine without the means for the transport: then other transports
// join the rank. kSystem of shared memory: the machine has shared memory, but it cannot be set up.
Result<std::unique_ptr<Endpoint>> makeShmEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeTcpEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeRdmaEndpoint(const Self& self);
Result<std::unique_ptr<Endpoint>> makeMpiEndpoint(const Self& self);

}  // namespace shardwire::internal
