// The interface between execution and the wire. A Connection joins this rank to one peer: ordered lanes of frames both
// ways, and, if the transport can, reads of the peer's memory, at once or by fetches that arrive later. Every transport
// implements this interface and passes one contract suite.
//
// Threads: all calls on one Connection come from one thread at a time (the engine holds its lock). Nothing here blocks.
// Ordering: frames of one lane arrive once and in order; lanes are independent of each other. A frame is seen whole or
// not at all, and everything written to memory by the sender before commit() is visible to a reader that peeked the
// frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>

#include "backend/fabric/doorbell.h"
#include "shardwire/status.h"
#include "shardwire/types.h"

namespace shardwire::internal {

enum class Lane : unsigned char {
  kControl = 0,  // small frames, always taken at once by the receiver's engine
  kBulk = 1,     // staged payloads of collectives and compiled ops, taken in order by the op of each frame
  kPoint = 2,    // staged payloads of send/recv requested by the receiver
};
inline constexpr int kNumLanes = 3;
constexpr std::size_t indexOf(Lane lane) {
  return static_cast<std::size_t>(lane);
}

// How this rank can read the peer's memory at some address.
enum class Reach : unsigned char {
  kNone = 0,    // not at all: the owner must stage the data
  kDirect = 1,  // map() returns a pointer
  kCopy = 2,    // read() copies the data at once (cross-memory system call)
  kFetch = 3,   // fetch() requests the data, which arrives later (over a wire)
};

// An address in the owner's memory that a peer may read: in the owner's shared heap (space 0, value = offset in the
// heap), in the owner's address space (space 1, value = virtual address), or in an extent exposed to this peer (space
// >= kFirstExposure names the exposure, value = virtual address). The owner sends this to the peer.
struct RemoteAddress {
  std::uint32_t space = 0;
  std::uint64_t value = 0;
};
inline constexpr std::uint32_t kHeapSpace = 0;
inline constexpr std::uint32_t kVirtualSpace = 1;
inline constexpr std::uint32_t kFirstExposure = 2;

struct MemoryRun {
  std::byte* local;
  std::uint64_t remote;  // in the owner's virtual address space
  std::size_t bytes;
};

// The number of a caller's fetches still under way. Must stay in place until the number is 0.
struct FetchCount {
  std::uint32_t pending = 0;
};

// The place of a rank's memory for its holders: in the address space, for ranks of the owner's process, and in the
// owner's shared heap.
struct HeapPlace {
  std::uint64_t address = 0;
  std::uint64_t offset = 0;
  bool isInHeap = false;
};

// Memory of a peer that stays mapped here for reading and writing until release(), even after the connection is
// destroyed. Any thread.
class HeldMemory {
 public:
  virtual ~HeldMemory() = default;
  virtual std::byte* bytes() const = 0;
  // Gives the memory back to the owner: calls `notify` while the memory can still be written; afterwards the memory
  // must not be written. Once.
  virtual void release(const std::function<void()>& notify) = 0;
  // The owner's process has ended, or has no groups any more. Also after release().
  virtual bool isOwnerGone() const = 0;
  // "stopped" when the kernel reports this of the owner's process; else empty.
  virtual std::string ownersState() const = 0;
};

// Whether reading from the peer pays, compared with packing and sending.
struct ReadLimits {
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  bool isWire = false;           // reads arrive later (kFetch), and exposing memory may cost something
  std::size_t minEdgeBytes = 0;  // an edge of a plan with fewer bytes in all is staged
  std::size_t minRunBytes = 0;   // a tensor with shorter contiguous runs, on average, is staged
  // kFetch: if the destination runs are shorter than this, a box is fetched as one piece and then unpacked.
  std::size_t minLocalRunBytes = 0;
  // kCopy. Staging takes one copy more than reading, but the sender's core makes this copy while the receiver's core
  // works, and the peer combines straight from the ring.
  std::size_t minCombinedBytes = 0;  // inputs of a shorter edge that the peer combines are staged
  // Likewise, where each rank has a core:
  std::size_t maxEdgeBytes = kNone;  // a longer edge is staged; a longer message also where cores are shared
  bool stagesOneWay = false;         // likewise an edge without as many bytes that come back meanwhile
  bool isMeasured = false;           // likewise a message, or another edge, goes the way that was sooner (ReadOrStage)
};

// The four faces of a connection. Code that needs one face takes only this face, and can do nothing else with the peer.
// All are faces of one object: a call is one virtual call through any face.

// Ordered lanes of frames, to the peer and from the peer.
class PeerFrames {
 public:
  // Out. Room for one frame of at least minBytes and at most maxBytes, contiguous; empty when there is none now.
  // Nothing is sent until commit(lane, bytes), with bytes at most the reserved size. At most one reservation per lane.
  // Precondition: minBytes <= maxFrameBytes(lane).
  virtual std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) = 0;
  virtual void commit(Lane lane, std::size_t bytes) = 0;
  virtual std::size_t maxFrameBytes(Lane lane) const = 0;

  // In. The oldest frame not yet released, or empty; stays valid until release(lane).
  virtual std::span<const std::byte> peek(Lane lane) = 0;
  virtual void release(Lane lane) = 0;

 protected:
  ~PeerFrames() = default;
};

// The parts of this rank's memory that the peer may read.
class PeerExposure {
 public:
  // The best way in which this peer can read my memory [bytes, bytes + size); kNone when it cannot. `address` must be
  // sent to the peer. With kFetch the peer may request these bytes, and no others, until conceal(address).
  virtual Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) = 0;
  virtual void conceal(const RemoteAddress& /*address*/) {}
  virtual ReadLimits readLimits() const = 0;

 protected:
  ~PeerExposure() = default;
};

// Reads of the peer's memory that are complete when the call returns.
class PeerReads {
 public:
  // A pointer to the peer's memory, valid as long as the connection; null when the memory is not mapped here (a wrong
  // address from the peer, or a bug: an error).
  virtual const std::byte* map(const RemoteAddress& /*address*/, std::size_t /*size*/) { return nullptr; }
  // Copies runs from the peer's virtual address space into local memory; kUnsupported if this connection cannot.
  virtual Status read(std::span<const MemoryRun> runs) = 0;
  // Whether the peer has stopped (PeerFetches::stopFetches()). Bytes read at once (map(), read()) before this was seen
  // false are the exposed bytes. Bytes read before this was seen true may be anything, since the peer's callers have
  // their tensors back. The peer's engine gives the reason in a control frame.
  virtual bool hasWithdrawn() const { return false; }
  // For a peer in this process: the lock to hold, shared, while memory from map() is read, so the owner can wait for
  // the reads before its callers free the memory. Null: another process's memory stays readable as long as it is mapped
  // here. See DirectRead.
  virtual std::shared_mutex* readersLock() { return nullptr; }

 protected:
  ~PeerReads() = default;
};

// Reads of the peer's memory that arrive later, over a wire.
class PeerFetches {
 public:
  // kFetch: requests runs of the peer's exposure `space`, each into its local memory, without a further copy if the
  // transport can. Precondition: there are runs, and no run is empty. False: there is no room now, and nothing was
  // requested. Otherwise ++count->pending, and
  // --count->pending in a later poll(), when all runs have arrived. Fetches may end in any order. A fetch that the peer
  // refuses (the bytes are not exposed) or that fails shows in health(), and stays pending.
  virtual bool fetch(std::uint32_t /*space*/, std::span<const MemoryRun> /*runs*/, FetchCount* /*count*/) {
    return false;
  }
  // The group failed, and callers' tensors are about to be freed. From here on nothing is read from or written to
  // memory of callers, no fetch ends any more, and no new fetch starts; frames still travel. False: fetches under way
  // cannot be stopped, and such memory must stay until the process ends. Even then no fetch of the peer's ends with
  // bytes read from this rank's memory afterwards. May be called again.
  virtual bool stopFetches() { return true; }

 protected:
  ~PeerFetches() = default;
};

// One peer: its faces, and whether the peer lives.
class Connection : public PeerFrames, public PeerExposure, public PeerReads, public PeerFetches {
 public:
  virtual ~Connection() = default;
  virtual Rank peer() const = 0;
  virtual const char* transportName() const = 0;
  // False: a placeholder for a later connection (UnjoinedConnection): there is no room and no frame, and how memory can
  // be exposed is not known yet.
  virtual bool isJoined() const { return true; }

  // Symmetric memory: a range of whole pages that the peer made for its peers to write. kUnsupported, with the reason,
  // when the peer's memory is not mapped here. `size` 0: no memory; the result detects the end of the peer's process.
  virtual Result<std::shared_ptr<HeldMemory>> hold(const HeapPlace& place, std::size_t size);

  // A step of the normal end, for connections that are used no more: sends the last frames and the leave, and never
  // waits. True: nothing is left to do, or the time for the end is over. The destructor takes all steps that are left.
  // A rank takes the steps of all connections in turns, so that a slow peer does not delay the last frames to others.
  // Over rdma and mpi the destructor sends everything.
  virtual bool leave() { return true; }

  // Ok while the peer lives and listens; kPeerFailed naming the rank, with the reason, once the peer died or left.
  // Cheap: called in wait loops.
  virtual Status health() = 0;
  // "rank 1: shm, cross-memory reads 7.2 GB/s"
  virtual std::string describe() const = 0;
};

// Held while memory from map() is read. The holder waits for nothing else meanwhile; a thread that holds several takes
// them in the order of readersLock().
class DirectRead {
 public:
  explicit DirectRead(PeerReads& owner) {
    if (std::shared_mutex* const lock = owner.readersLock(); lock != nullptr) {
      held_ = std::shared_lock(*lock);
      isAllowed_ = !owner.hasWithdrawn();
    }
  }
  // False: the owner's callers may have freed the memory. The owner's reason is on the way.
  bool isAllowed() const { return isAllowed_; }

 private:
  std::shared_lock<std::shared_mutex> held_;
  bool isAllowed_ = true;
};

// The part of a wire that a rank's connections share: a completion queue, an epoll set. Outlives the connections.
// Threads: as Connection, except for readinessFd(), on which any thread may wait.
class Wire {
 public:
  virtual ~Wire() = default;
  // Moves bytes both ways as far as possible without waiting. The engine calls poll() before looking at the
  // connections: only here do frames arrive and fetches end. True when something arrived or left.
  virtual bool poll() = 0;
  // A descriptor that is readable while poll() has, or may have, something to do; -1: there is none (MPI), and sleepers
  // take short naps.
  virtual int readinessFd() const = 0;
  // A thread is about to sleep on readinessFd(): requests notification where this has a cost (RDMA completion events).
  // Earlier events are found by the poll() that follows, and later events make the descriptor readable, whatever this
  // poll() found.
  virtual void prepareToSleep() {}
  // Announces memory that this rank is about to expose or to fetch into, any number of times and for any number of
  // peers, until unpin(). The memory is made ready once, and kept ready for the next time if `storage`
  // (TensorView::storage) shows whether the memory is still the same. `isWritten`: fetches fill the memory. Advice:
  // memory that was not pinned is made ready when needed. 0: there is nothing to make ready, or the request was
  // refused.
  virtual std::uint64_t pin(const void* /*bytes*/, std::size_t /*size*/, bool /*isWritten*/, const void* /*storage*/) {
    return 0;
  }
  virtual void unpin(std::uint64_t /*pin*/) {}
};

}  // namespace shardwire::internal
