// One reliable connection between two ports: RDMA writes out, immediate values in. Owned by a connection. Threads: see
// Connection.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "backend/transport/rdma/rdma_fabric.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The address of a queue pair, for the peer's connect().
struct QueuePairAddress {
  std::uint32_t number = 0;
  std::uint32_t firstPacket = 0;  // packet sequence number, 24 bits
};

struct QueuePairDepth {
  std::uint32_t sends = 0;
  std::uint32_t receives = 0;
};

// Local memory to send, and the remote address to write.
struct RdmaWrite {
  const void* local = nullptr;
  std::uint32_t localKey = 0;
  std::uint64_t remote = 0;
  std::uint32_t remoteKey = 0;
  std::size_t bytes = 0;                   // at most kMaxWriteBytes
  std::optional<std::uint32_t> immediate;  // arrives after the bytes, and takes one of the peer's receives
  bool isSignalled = false;                // requests a completion; write() also does so at intervals
};

class QueuePair {
 public:
  // Longer writes gain nothing, and short writes locate a failure more exactly.
  static constexpr std::size_t kMaxWriteBytes = std::size_t{1} << 20;

  // `id` names the connection and the queue; write() sets the sequence.
  static Result<std::unique_ptr<QueuePair>> create(RdmaFabric& fabric, const Rail& rail, QueuePairDepth depth,
                                                   const WorkId& id);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  QueuePairAddress address() const { return {qp_->qp_num, firstPacket_}; }
  // Posts all receives; the peer may send afterwards.
  Status connect(const RailAddress& peer, const QueuePairAddress& peerQueue);
  const Rail& rail() const { return rail_; }

  // False: no room until the next completion, or the queue pair failed.
  bool write(const RdmaWrite& write);
  bool hasRoom() const { return posted_ - completed_ < depth_.sends && error_ == 0; }
  // Numbers of requests posted, and of requests known to be complete; both wrap around.
  std::uint32_t posted() const { return posted_; }
  std::uint32_t completed() const { return completed_; }
  void onSendCompleted(std::uint32_t sequence) { completed_ = sequence; }
  bool postReceives(std::uint32_t number);
  // errno of a failed post; 0: no post failed.
  int error() const { return error_; }

 private:
  QueuePair(const VerbsApi& api, const Rail& rail, QueuePairDepth depth, const WorkId& id)
      : api_(api), rail_(rail), depth_(depth), id_(id) {}
  Status modify(ibv_qp_attr* attributes, int mask, const char* to);

  const VerbsApi& api_;
  const Rail& rail_;
  const QueuePairDepth depth_;
  const WorkId id_;
  ibv_qp* qp_ = nullptr;
  std::uint32_t firstPacket_ = 0;
  std::uint32_t maxInline_ = 0;
  std::uint32_t posted_ = 0;
  std::uint32_t completed_ = 0;
  std::uint32_t lastSignalled_ = 0;
  int error_ = 0;
};

}  // namespace shardwire::internal
