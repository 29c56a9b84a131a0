// Two ranks on one host, in two processes or one, joined by shared memory: rings in each other's inbox, the peer's heap
// mapped for reading, and the peer's other memory read by a system call where allowed. Made by the endpoint. Threads:
// see Connection.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "backend/memory/shared_heap.h"
#include "backend/transport/frame_ring.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/shm/shm_link.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// The results of attaching to a peer.
struct ShmJoint {
  Rank self = 0;
  Rank peer = 0;
  std::string who;  // the peer for messages: "rank 1 (pid 7 on host a)"
  // Of ordinary memory, for two ranks of one process: a forced path applies here, too.
  Reach sameProcessReach = Reach::kDirect;
  std::shared_ptr<const ShmLink> link;  // to the peer's process; null: the peer is in this process
  std::shared_ptr<Inbox> mine;
  std::shared_ptr<Inbox> theirs;
  const SharedHeap* myHeap = nullptr;  // lives as long as the process
  // Of my reads of the peer's ordinary memory; 0: this memory is not read, for the reason below.
  double readGBps = 0;
  std::string whyNoReads;
  bool isForced = false;  // either side asked for reads of the other's ordinary memory (SHARDWIRE_ORDINARY_PATH)
  // From the peer's report, once the peer has attached.
  bool peerReadsMe = false;      // by cross-memory reads
  std::string whyPeerHasNoHeap;  // why the peer has not mapped my heap; empty: my heap is mapped

  bool isSameProcess() const { return link == nullptr; }
};

class ShmConnection final : public Connection {
 public:
  // Announces this rank to the peer, in the peer's slot for this rank.
  explicit ShmConnection(ShmJoint joint);
  ~ShmConnection() override;

  Rank peer() const override { return joint_.peer; }
  const char* transportName() const override { return "shm"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override {
    return writers_[indexOf(lane)].reserve(minBytes, maxBytes);
  }
  void commit(Lane lane, std::size_t bytes) override;
  std::size_t maxFrameBytes(Lane lane) const override { return maxFrameBytes_[indexOf(lane)]; }
  std::span<const std::byte> peek(Lane lane) override { return readers_[indexOf(lane)].peek(); }
  void release(Lane lane) override;
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override;
  ReadLimits readLimits() const override;
  const std::byte* map(const RemoteAddress& address, std::size_t size) override;
  Result<std::shared_ptr<HeldMemory>> hold(const HeapPlace& place, std::size_t size) override;
  Status read(std::span<const MemoryRun> runs) override;
  bool stopFetches() override;
  bool hasWithdrawn() const override { return joint_.theirs->ownerWithdrew(); }
  std::shared_mutex* readersLock() override { return joint_.isSameProcess() ? &joint_.theirs->readers() : nullptr; }
  Status health() override;
  std::string describe() const override;

  // Whether the peer has attached, too; from then on the peer's report is known. Before that nothing is exposed to the
  // peer.
  bool readAnnouncement();
  // Why a peer that left had given up, if the peer left a reason.
  std::optional<Status> peersLastWord() const { return joint_.theirs->lastWord(); }
  // Why the peer cannot join this rank; nothing while the peer has not reported a reason.
  std::optional<Status> peersRefusal() const { return joint_.theirs->refusalOf(joint_.self); }
  // The reads of each side: GB/s, or 0 with a reason. The peer's are known after readAnnouncement().
  struct Reads {
    double gbps = 0;
    std::string whyNot;
  };
  Reads myReads() const { return {joint_.readGBps, joint_.whyNoReads}; }
  const Reads& peersReads() const { return peersReads_; }
  bool isForced() const { return joint_.isForced; }

 private:
  SlotReader& mySign() const { return *joint_.theirs->slot(joint_.self).reader(); }
  bool hasLeft() const;
  Status lookAtPeer();

  ShmJoint joint_;
  std::array<RingWriter, kNumLanes> writers_;
  std::array<RingReader, kNumLanes> readers_;
  std::array<std::size_t, kNumLanes> maxFrameBytes_;
  bool isAnnounced_ = false;
  Reads peersReads_;
  Deadline nextSocketLook_{};
  Status failure_;  // the first one stays
};

}  // namespace shardwire::internal
