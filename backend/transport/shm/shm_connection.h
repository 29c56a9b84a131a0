// Two ranks on one host, in two processes or one, joined by shared memory: rings in each other's inbox, the peer's heap mapped for reading,
// its other memory read by a system call where that is allowed. Made by the handshake. Threads: see Connection.
#pragma once

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "backend/memory/shared_heap.h"
#include "backend/transport/shm/frame_ring.h"
#include "backend/transport/shm/inbox.h"
#include "backend/transport/transport.h"

namespace shardwire::internal {

// What the handshake found out.
struct ShmLink {
  Rank self = 0;
  Rank peer = 0;
  std::string who;  // the peer for messages: "rank 1 (pid 7 on host a)"
  pid_t pid = 0;
  bool sameProcess = false;
  Reach sameProcessReach = Reach::kDirect;  // of ordinary memory, when sameProcess: a forced path is kept to here too
  Fd socket;                                // stays open: it hangs up when the peer's process ends
  std::shared_ptr<Inbox> mine;
  std::shared_ptr<Inbox> theirs;
  const SharedHeap* myHeap = nullptr;       // lives as long as the process
  std::shared_ptr<const Mapping> peerHeap;  // null: the peer has none, or is in this process
  bool peerReadsMe = false;                 // by cross-memory reads
  double readGBps = 0;                      // of my reads; 0: I cannot
  std::string whyNoReads;
};

class ShmConnection final : public Connection {
 public:
  explicit ShmConnection(ShmLink link);
  ~ShmConnection() override;

  Rank peer() const override { return link_.peer; }
  const char* transportName() const override { return "shm"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override;
  void commit(Lane lane, std::size_t bytes) override;
  std::size_t maxFrameBytes(Lane lane) const override;
  std::span<const std::byte> peek(Lane lane) override;
  void release(Lane lane) override;
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override;
  ReadLimits readLimits() const override;
  const std::byte* map(const RemoteAddress& address, std::size_t size) override;
  Status read(std::span<const MemoryRun> runs) override;
  double readGBps() const override { return link_.readGBps; }
  Status health() override;
  std::string describe() const override;

 private:
  Status lookAtPeer();

  ShmLink link_;
  std::array<RingWriter, kNumLanes> writers_;
  std::array<RingReader, kNumLanes> readers_;
  std::array<std::size_t, kNumLanes> maxFrameBytes_;
  Deadline nextSocketLook_{};
  Status failure_;  // the first one stays
};

}  // namespace shardwire::internal
