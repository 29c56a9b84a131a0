// Two ranks of one MPI job. Each lane is a tag of the pair's communicator: one receive is always posted, and the sender
// has credit for the room at the peer. Service messages (credit, requests for
// memory) have a separate tag, and fetched memory has a further tag. MPI neither notices a dead process nor ends
// operations that wait for a dead process. So the bootstrap's link stays open: the system closes the link when the
// peer's process ends, and a farewell on the link distinguishes leaving from dying. Threads: see Connection.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/fabric/link.h"
#include "backend/transport/mpi/mpi_fetches.h"
#include "backend/transport/mpi/mpi_lane.h"
#include "backend/transport/mpi/mpi_message.h"
#include "backend/transport/mpi/mpi_wire.h"

namespace shardwire::internal {

// The agreement of the endpoint and the peer.
struct MpiJoint {
  Rank peer = 0;
  std::string who;  // the peer for messages: "rank 1 (pid 7 on host a)"
  int worldRank = 0;
  Fd socket;  // of the link
  MpiPair* pair = nullptr;
  int firstTag = 0;
  std::array<std::uint64_t, kNumLanes> laneBytes{};
  ReadLimits readLimits;
  bool isStaged = false;  // no fetches: SHARDWIRE_ORDINARY_PATH=staged
};

class MpiConnection final : public Connection, private MpiReceiver {
 public:
  // Posts the first receives. `wire` outlives the connection.
  static Result<std::unique_ptr<Connection>> create(MpiJoint joint, MpiWire* wire);
  ~MpiConnection() override;
  MpiConnection(const MpiConnection&) = delete;
  MpiConnection& operator=(const MpiConnection&) = delete;

  Rank peer() const override { return joint_.peer; }
  const char* transportName() const override { return "mpi"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override {
    return writers_[indexOf(lane)].reserve(minBytes, maxBytes);
  }
  void commit(Lane lane, std::size_t bytes) override;
  std::size_t maxFrameBytes(Lane lane) const override {
    return maxLaneFrameBytes(static_cast<std::size_t>(joint_.laneBytes[indexOf(lane)]));
  }
  std::span<const std::byte> peek(Lane lane) override { return readers_[indexOf(lane)].peek(); }
  void release(Lane lane) override;
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override;
  void conceal(const RemoteAddress& address) override { fetches_.conceal(address.space); }
  ReadLimits readLimits() const override { return joint_.readLimits; }
  Status read(std::span<const MemoryRun> runs) override;
  bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) override;
  bool stopFetches() override { return fetches_.stop(); }
  Status health() override;
  std::string describe() const override;

 private:
  enum Kind : std::uint16_t { kFrameSend = 0, kFrameReceive = 1, kServiceSend = 2, kServiceReceive = 3 };

  // A message outside of the lanes, kept until MPI has sent the bytes.
  struct ServiceMessage {
    std::string bytes;
    bool isInFlight = false;
  };

  MpiConnection(MpiJoint joint, MpiWire* wire);
  void onDone(const MpiDone& done) override;
  void onFrame(std::size_t lane, std::size_t bytes);
  void onService(std::size_t bytes);
  void takeHead(const MpiHead& head);
  void post(std::size_t lane);
  void postService();
  // A message outside of the lanes; `body` follows the head.
  void sendService(MpiKind kind, std::string_view body);
  // The head of each message carries this rank's counts. A separate notice is sent when the peer may wait for the
  // counts, and no message has carried the counts.
  void sendNoticeIfDue();
  MpiHead head(MpiKind kind);
  void fail(const Status& failure);
  Status named(const Status& failure) const;
  Status lookAtLink();
  bool allArrived() const;
  void sayFarewell();
  void flush();
  std::size_t numInFlight() const { return numSends_ + numReceives_ + fetches_.numInFlight(); }

  MpiJoint joint_;
  MpiWire* const wire_;
  std::array<MpiLaneWriter, kNumLanes> writers_;
  std::array<MpiLaneReader, kNumLanes> readers_;
  std::array<std::uint64_t, kNumLanes> reportedReleased_{};  // released bytes, as reported to the peer
  std::uint64_t reportedConfirmed_ = 0;                      // confirmed fetches, as reported to the peer
  MpiFetches fetches_;
  std::unique_ptr<std::byte[]> serviceIn_;
  std::vector<std::unique_ptr<ServiceMessage>> serviceOut_;  // reused
  bool isNoticeInFlight_ = false;
  std::size_t numSends_ = 0;  // without the sends of fetches_
  std::size_t numReceives_ = 0;
  Deadline nextLinkLook_{};
  std::string farewell_;     // received bytes of the peer's farewell
  Deadline goneSince_{};     // when the peer's farewell was read, or its last frame since; the clock's zero: not yet
  bool isPeerGone_ = false;  // the link is closed: the peer will receive nothing more
  Status failure_;           // the first failure is kept
};

}  // namespace shardwire::internal
