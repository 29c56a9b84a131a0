// Two ranks on one host, in two processes or one, joined by shared memory: rings in each other's inbox, the peer's heap mapped for reading,
// its other memory read by a system call where that is allowed. Made by the endpoint. Threads: see Connection.
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

// What joining found out.
struct ShmJoint {
  Rank self = 0;
  Rank peer = 0;
  std::string who;                          // the peer for messages: "rank 1 (pid 7 on host a)"
  Reach sameProcessReach = Reach::kDirect;  // of ordinary memory, when in one process: a forced path is kept to here too
  std::shared_ptr<const ShmLink> link;      // to the peer's process; null: it is this one
  std::shared_ptr<Inbox> mine;
  std::shared_ptr<Inbox> theirs;
  const SharedHeap* myHeap = nullptr;  // lives as long as the process
  double readGBps = 0;                 // of my reads of the peer's ordinary memory; 0: it is not read, for the reason
  std::string whyNoReads;
  // As the peer says, once it is there.
  bool peerReadsMe = false;      // by cross-memory reads
  std::string whyPeerHasNoHeap;  // why mine is not mapped there; empty: it is

  bool isSameProcess() const { return link == nullptr; }
};

class ShmConnection final : public Connection {
 public:
  // Tells the peer, by its slot of this rank, that this rank is there.
  explicit ShmConnection(ShmJoint joint);
  ~ShmConnection() override;

  Rank peer() const override { return joint_.peer; }
  const char* transportName() const override { return "shm"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override;
  void commit(Lane lane, std::size_t bytes) override;
  std::size_t maxFrameBytes(Lane lane) const override;
  std::span<const std::byte> peek(Lane lane) override;
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

  // Whether the peer is there too; what it says of itself is known from then on. Nothing is exposed to it before.
  bool hearPeer();
  // Why the peer, which left, had given up, if it said so.
  std::optional<Status> peersLastWord() const { return joint_.theirs->lastWord(); }
  // Why the peer cannot join this rank; nothing while it has not said so.
  std::optional<Status> peersRefusal() const { return joint_.theirs->refusalOf(joint_.self); }
  // Of the reads that either side may do: 0 with a reason, or GB/s. Of the peer's after hearPeer().
  struct Reads {
    double gbps = 0;
    std::string whyNot;
  };
  Reads myReads() const { return {joint_.readGBps, joint_.whyNoReads}; }
  const Reads& peersReads() const { return peersReads_; }

 private:
  SlotReader& mySign() const { return *joint_.theirs->slot(joint_.self).reader(); }
  bool hasLeft() const;
  Status lookAtPeer();

  ShmJoint joint_;
  std::array<RingWriter, kNumLanes> writers_;
  std::array<RingReader, kNumLanes> readers_;
  std::array<std::size_t, kNumLanes> maxFrameBytes_;
  bool isHeard_ = false;
  Reads peersReads_;
  Deadline nextSocketLook_{};
  Status failure_;  // the first one stays
};

}  // namespace shardwire::internal
