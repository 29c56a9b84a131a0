// Peers of a group that are joined when an operation first needs them. Until then each has a placeholder connection
// that carries nothing.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/transport/lanes.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// One per group. Threads: one at a time (the engine's lock), except for hasNews(). Nothing here waits.
class LateLinks {
 public:
  virtual ~LateLinks() = default;
  virtual bool isLate(Rank peer) const = 0;
  // An operation needs the peer: the peer must be joined. Peers that want this rank are joined without this call. May
  // be called again.
  virtual void want(Rank peer) = 0;
  struct News {
    Rank peer = -1;
    // Not ok: the peer cannot be joined, and is not tried again. kPeerFailed: the peer died, or left. If the peer left
    // after giving up, this is the peer's reason.
    Result<std::unique_ptr<Connection>> connection;
  };
  // The peers that were joined, or cannot be joined, since the last call.
  virtual std::vector<News> poll() = 0;
  // Whether poll() has something to do. The process's progress bell is rung when this becomes true, and this rank's
  // doorbell, if armed.
  virtual bool hasNews() const = 0;
  // Whether any peer is wanted and neither joined nor given up.
  virtual bool isAnyUnderWay() const = 0;
  // "its process does not answer": why a wanted peer is not joined yet; empty when the peer is not wanted.
  virtual std::string whyNotYet(Rank peer) const = 0;
};

// A peer to be joined when an operation first needs it.
struct LatePeer {
  Rank rank = 0;
  std::string address;  // Endpoint::address() of the peer
  std::string who;      // for messages
};

// Combines two kinds in one group; null for a missing kind.
std::unique_ptr<LateLinks> bothLateLinks(std::unique_ptr<LateLinks> one, std::unique_ptr<LateLinks> other);

// The placeholder for a peer that is not joined yet: never has room, nor a frame.
class UnjoinedConnection final : public Connection {
 public:
  UnjoinedConnection(Rank peer, const char* transport, const Options& options)
      : peer_(peer), transport_(transport), laneBytes_(laneCapacities(options)) {}

  Rank peer() const override { return peer_; }
  const char* transportName() const override { return transport_; }
  bool isJoined() const override { return false; }
  std::span<std::byte> reserve(Lane, std::size_t, std::size_t) override { return {}; }
  void commit(Lane, std::size_t) override {}
  std::size_t maxFrameBytes(Lane lane) const override { return maxLaneFrameBytes(laneBytes_[indexOf(lane)]); }
  std::span<const std::byte> peek(Lane) override { return {}; }
  void release(Lane) override {}
  Reach expose(const void*, std::size_t, RemoteAddress*) override { return Reach::kNone; }
  ReadLimits readLimits() const override { return {}; }
  Status read(std::span<const MemoryRun>) override { return {StatusCode::kInternal, "the peer is not joined yet"}; }
  Status health() override { return Status::ok(); }
  std::string describe() const override;

 private:
  const Rank peer_;
  const char* const transport_;
  const std::array<std::uint64_t, kNumLanes> laneBytes_;
};

}  // namespace shardwire::internal
