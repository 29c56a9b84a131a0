// Two ranks joined by RDMA: lanes of frames over one queue pair, fetched payload over further queue pairs (one for each
// pair of ports), and the link, whose end of stream reports the end of the peer's process. Made by the handshake.
// Threads: see Connection.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/fabric/link.h"
#include "backend/transport/rdma/fetch_requester.h"
#include "backend/transport/rdma/fetch_server.h"
#include "backend/transport/rdma/frame_lanes.h"
#include "backend/transport/rdma/rdma_fabric.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// The result of the handshake.
struct RdmaJoin {
  Rank self = 0;
  Rank peer = 0;
  std::string who;  // the peer for messages: "rank 3 (pid 7 on host b)"
  Fd link;          // stays open: the system closes the link when the peer's process ends
  std::unique_ptr<FrameLanes> lanes;
  std::vector<std::unique_ptr<QueuePair>> payload;
  std::vector<std::string> peerPorts;  // by payload queue pair, for messages
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
};

class RdmaConnection final : public Connection, private FabricMember {
 public:
  // `slot`: the fabric's number for this connection, part of every WorkId.
  RdmaConnection(std::shared_ptr<RdmaFabric> fabric, std::uint32_t slot, RdmaJoin join);
  ~RdmaConnection() override;

  Rank peer() const override { return join_.peer; }
  const char* transportName() const override { return "rdma"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override {
    return join_.lanes->reserve(indexOf(lane), minBytes, maxBytes);
  }
  void commit(Lane lane, std::size_t bytes) override { join_.lanes->commit(indexOf(lane), bytes); }
  std::size_t maxFrameBytes(Lane lane) const override { return join_.lanes->maxFrameBytes(indexOf(lane)); }
  std::span<const std::byte> peek(Lane lane) override { return join_.lanes->peek(indexOf(lane)); }
  void release(Lane lane) override;
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override;
  void conceal(const RemoteAddress& address) override { server_.conceal(address.space); }
  ReadLimits readLimits() const override;
  Status read(std::span<const MemoryRun> runs) override;
  bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) override;
  bool stopFetches() override;
  Status health() override;
  std::string describe() const override;

 private:
  void onCompletion(const WorkId& id, const ibv_wc& completion) override;
  void advance() override;
  void onLinkReadable() override;
  void onDeviceTrouble(const std::string& what, bool isFatal) override;

  void onImmediate(const WorkId& id, std::uint32_t immediate);
  void onFailedCompletion(const WorkId& id, const ibv_wc& completion);
  void fail(StatusCode code, std::string text);
  // Takes the last bytes that the peer sent. Returns whether the peer left or died.
  Status lastWords();
  void probeIfSilent(Deadline now);
  void sendLastFrames();

  std::shared_ptr<RdmaFabric> fabric_;
  RdmaJoin join_;
  const std::uint32_t slot_;
  FetchRequester requester_;
  FetchServer server_;
  bool hasStopped_ = false;      // stopFetches() was called here
  bool peerHasStopped_ = false;  // the peer called it: the payload queue pairs fail on purpose
  bool peerIsLeaving_ = false;
  bool isHungUp_ = false;
  bool hasWarnedOfStaging_ = false;
  bool hasArrived_ = true;  // a completion arrived since the last check of the clock
  bool isProbing_ = false;  // a probe was posted since the last completion
  Deadline lastArrival_{};
  std::string deviceTrouble_;     // the latest device event, for messages
  std::string transportFailure_;  // the first request that failed
  Status failure_;                // the first failure is kept
};

}  // namespace shardwire::internal
