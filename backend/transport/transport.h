// The waist between execution and the wire. A Connection joins this rank to one peer: ordered lanes of frames both ways, and, where the
// transport can, reads of the peer's memory, at once or by fetches that arrive later. Whatever carries bytes between ranks implements this
// and passes one contract suite.
//
// Threads: all calls on one Connection come from one thread at a time (the engine holds its lock). Nothing here blocks.
// Ordering: frames of one lane arrive once and in order; lanes are independent of each other. A frame is seen whole or not at all, and
// whatever the sender wrote to memory before commit() is visible to a reader that peeked the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
  kBulk = 1,     // staged payloads of collectives and compiled ops, taken in order by the op they belong to
  kPoint = 2,    // staged payloads of send/recv that the receiver asked for
};
inline constexpr int kNumLanes = 3;

// How the peer's memory at some address can be read from here.
enum class Reach : unsigned char {
  kNone = 0,    // not at all: the owner must stage it
  kDirect = 1,  // map() gives a pointer
  kCopy = 2,    // read() copies it at once (cross-memory system call)
  kFetch = 3,   // fetch() asks for it; it arrives later (over a wire)
};

// An address in the owner's memory that a peer may read: in the owner's shared heap (space 0, value = offset in the heap), in the owner's
// address space (space 1, value = virtual address), or in an extent that the owner exposed to this peer (space >= kFirstExposure names the
// exposure, value = virtual address). What the owner puts on the wire.
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

// What the caller of fetch() watches: how many of its fetches are still under way. Stays where it is until that is 0.
struct FetchCount {
  std::uint32_t pending = 0;
};

// Where memory of its owner lies for those who hold it: in its address space, for ranks of its own process, and in its shared heap.
struct HeapPlace {
  std::uint64_t address = 0;
  std::uint64_t offset = 0;
  bool isInHeap = false;
};

// Memory of a peer that stays mapped here, to be read and written, until release(), also when the connection is gone. Any thread.
class HeldMemory {
 public:
  virtual ~HeldMemory() = default;
  virtual std::byte* bytes() const = 0;
  // The owner may have it back: calls `tell` while the memory can still be written, then it can not. Once.
  virtual void release(const std::function<void()>& tell) = 0;
  // The owner's process is gone, or has no groups any more. Also after release().
  virtual bool isOwnerGone() const = 0;
  // "stopped" where the kernel says so of the owner's process; else empty.
  virtual std::string ownersState() const = 0;
};

// Whether it pays to read from the peer rather than to have it packed and sent.
struct ReadLimits {
  bool isWire = false;           // reads arrive later (kFetch), and exposing memory may cost something
  std::size_t minEdgeBytes = 0;  // an edge of a plan that moves less in all is staged
  std::size_t minRunBytes = 0;   // a tensor whose contiguous runs are shorter than this, on average, is staged
  // kFetch: where the runs to be written are shorter than this, a box is fetched as one piece and then unpacked.
  std::size_t minLocalRunBytes = 0;
};

// The four faces of a connection. Whoever needs one of them takes that, and can do nothing else with the peer. Faces of one object: a call
// is one virtual call, whichever face it goes through.

// Ordered lanes of frames, to the peer and from it.
class PeerFrames {
 public:
  // Out. Room for one frame of at least minBytes and at most maxBytes, contiguous; empty when there is none now. Nothing is sent until
  // commit(lane, bytes), bytes <= what was reserved. At most one reservation per lane. Precondition: minBytes <= maxFrameBytes(lane).
  virtual std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) = 0;
  virtual void commit(Lane lane, std::size_t bytes) = 0;
  virtual std::size_t maxFrameBytes(Lane lane) const = 0;

  // In. The oldest frame not yet released, or empty; stays valid until release(lane).
  virtual std::span<const std::byte> peek(Lane lane) = 0;
  virtual void release(Lane lane) = 0;

 protected:
  ~PeerFrames() = default;
};

// What the peer may read of this rank's memory.
class PeerExposure {
 public:
  // How I can publish my own memory [bytes, bytes + size) so that this peer reads it, best way first; kNone when it cannot.
  // `address` is what to tell the peer. Where that is kFetch, the peer may ask for these bytes, and no others, until conceal(address).
  virtual Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) = 0;
  virtual void conceal(const RemoteAddress& address) { static_cast<void>(address); }
  virtual ReadLimits readLimits() const = 0;

 protected:
  ~PeerExposure() = default;
};

// Reads of the peer's memory that are over when the call returns.
class PeerReads {
 public:
  // A pointer to the peer's memory, valid as long as the connection; null when it is not mapped here (a peer's lie or a bug: an error).
  virtual const std::byte* map(const RemoteAddress& address, std::size_t size) = 0;
  // Copies runs from the peer's virtual address space into local memory; kUnsupported where this connection cannot.
  virtual Status read(std::span<const MemoryRun> runs) = 0;
  // Whether the peer has stopped (PeerFetches::stopFetches()). Whatever was read at once (map(), read()) before this was seen false is what
  // the peer exposed; what was read before it was seen true may be anything, since the peer's callers have their tensors back. Why, its
  // engine says in a control frame.
  virtual bool hasWithdrawn() const { return false; }
  // Where the peer is a rank of this process: what is held, shared, while memory is read that map() gave, so that its owner can wait for
  // that before its callers free it. Null: another process's memory stays readable as long as it is mapped here. See DirectRead.
  virtual std::shared_mutex* readersLock() { return nullptr; }

 protected:
  ~PeerReads() = default;
};

// Reads of the peer's memory that arrive later, over a wire.
class PeerFetches {
 public:
  // kFetch: asks for runs of the peer's exposure `space`, each into its local memory, without a further copy where the transport can.
  // False: no room now, nothing was asked. Otherwise ++count->pending, and --count->pending in a later poll(), when all runs lie there.
  // Fetches may end in any order. A fetch that the peer refuses (it exposed no such bytes) or that fails shows in health(), and stays
  // pending.
  virtual bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
    static_cast<void>(space), static_cast<void>(runs), static_cast<void>(count);
    return false;
  }
  // The group failed, and callers' tensors are about to go: from here on nothing is read from or written to memory that callers own, no
  // fetch ends any more, no new one starts; frames still travel. False: what is under way cannot be stopped, and such memory must stay
  // until the process ends. Even then no fetch of the peer's ends with bytes that were read from this rank's memory afterwards. May be
  // asked again.
  virtual bool stopFetches() { return true; }

 protected:
  ~PeerFetches() = default;
};

// One peer: its faces, and whether it lives.
class Connection : public PeerFrames, public PeerExposure, public PeerReads, public PeerFetches {
 public:
  virtual ~Connection() = default;
  virtual Rank peer() const = 0;
  virtual const char* transportName() const = 0;
  // False: it stands for one to come (UnjoinedConnection): there is no room and no frame, and how memory can be exposed is not known yet.
  virtual bool isJoined() const { return true; }

  // Symmetric memory: a range of whole pages of the peer that it made for its peers to write. kUnsupported, and why, where the peer's
  // memory is not mapped here.
  virtual Result<std::shared_ptr<HeldMemory>> hold(const HeapPlace& place, std::size_t size);

  // Ok while the peer lives and listens; kPeerFailed naming the rank, with the reason, once it died or left. Cheap: called in wait loops.
  virtual Status health() = 0;
  // "rank 1: shm, cross-memory reads 7.2 GB/s"
  virtual std::string describe() const = 0;
};

// For as long as memory is read that map() gave. Nothing else is waited for meanwhile; who holds several takes them in the order of
// readersLock().
class DirectRead {
 public:
  explicit DirectRead(PeerReads& owner) {
    if (std::shared_mutex* const lock = owner.readersLock(); lock != nullptr) {
      held_ = std::shared_lock(*lock);
      isAllowed_ = !owner.hasWithdrawn();
    }
  }
  // False: the owner's callers may have freed it. Its reason is on the way.
  bool isAllowed() const { return isAllowed_; }

 private:
  std::shared_lock<std::shared_mutex> held_;
  bool isAllowed_ = true;
};

// What the connections over one wire share on a rank: a completion queue, an epoll set. Outlives them. Threads: as Connection, but for
// readinessFd(), which any thread may wait on.
class Wire {
 public:
  virtual ~Wire() = default;
  // Moves bytes both ways as far as that goes without waiting. The engine calls it before it looks at the connections: only here do frames
  // arrive and fetches end. True when something arrived or left.
  virtual bool poll() = 0;
  // A descriptor that is readable while poll() has, or may have, something to do; -1: there is none (MPI), and sleepers take naps.
  virtual int readinessFd() const = 0;
  // A thread is about to sleep on readinessFd(): asks for notification where that costs something (RDMA completion events). What happened
  // before is found by the poll() that follows, and what happens after that makes the descriptor readable whatever that poll() found.
  virtual void prepareToSleep() {}
  // Memory that this rank is about to expose or to fetch into, as often and to as many peers as it likes until unpin(): made ready once,
  // and kept ready for the next time where `storage` (TensorView::storage) tells whether it is still the same memory. `isWritten`: fetches
  // fill it. Advice: what was not pinned is made ready whenever it is needed. 0: there is nothing to make ready, or it was refused.
  virtual std::uint64_t pin(const void* bytes, std::size_t size, bool isWritten, const void* storage) {
    static_cast<void>(bytes), static_cast<void>(size), static_cast<void>(isWritten), static_cast<void>(storage);
    return 0;
  }
  virtual void unpin(std::uint64_t pin) { static_cast<void>(pin); }
};

}  // namespace shardwire::internal
