// The waist between execution and the wire. A Connection joins this rank to one peer: ordered lanes of frames both ways, and, where the
// transport can, direct reads of the peer's memory. Whatever carries bytes between ranks implements this and passes one contract suite.
//
// Threads: all calls on one Connection come from one thread at a time (the engine holds its lock). Nothing here blocks.
// Ordering: frames of one lane arrive once and in order; lanes are independent of each other. A frame is seen whole or not at all, and
// whatever the sender wrote to memory before commit() is visible to a reader that peeked the frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// Whether it pays to read from the peer rather than to have it packed and sent.
struct ReadLimits {
  bool isWire = false;           // reads arrive later (kFetch), and exposing memory may cost something
  std::size_t minEdgeBytes = 0;  // an edge of a plan that moves less in all is staged
  std::size_t minRunBytes = 0;   // a tensor whose contiguous runs are shorter than this, on average, is staged
  // kFetch: where the runs to be written are shorter than this, a box is fetched as one piece and then unpacked.
  std::size_t minLocalRunBytes = 0;
};

class Connection {
 public:
  virtual ~Connection() = default;
  virtual Rank peer() const = 0;
  virtual const char* transportName() const = 0;

  // Frames out. Room for one frame of at least minBytes and at most maxBytes, contiguous; empty when there is none now. Nothing is sent
  // until commit(lane, bytes), bytes <= what was reserved. At most one reservation per lane. Precondition: minBytes <= maxFrameBytes(lane).
  virtual std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) = 0;
  virtual void commit(Lane lane, std::size_t bytes) = 0;
  virtual std::size_t maxFrameBytes(Lane lane) const = 0;

  // Frames in. The oldest frame not yet released, or empty; stays valid until release(lane).
  virtual std::span<const std::byte> peek(Lane lane) = 0;
  virtual void release(Lane lane) = 0;

  // How I can publish my own memory [bytes, bytes + size) so that this peer reads it, best way first; kNone when it cannot.
  // `address` is what to tell the peer. Where that is kFetch, the peer may ask for these bytes, and no others, until conceal(address).
  virtual Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) = 0;
  virtual void conceal(const RemoteAddress& address) { static_cast<void>(address); }
  virtual ReadLimits readLimits() const = 0;
  // A pointer to the peer's memory, valid as long as the connection; null when it is not mapped here (a peer's lie or a bug: an error).
  virtual const std::byte* map(const RemoteAddress& address, std::size_t size) = 0;
  // Copies runs from the peer's virtual address space into local memory.
  virtual Status read(std::span<const MemoryRun> runs) = 0;
  // kFetch: asks for runs of the peer's exposure `space`, each into its local memory, without a further copy where the transport can.
  // False: no room now, nothing was asked. Otherwise ++count->pending, and --count->pending in a later poll(), when all runs lie there.
  // Fetches may end in any order. A fetch that the peer refuses (it exposed no such bytes) or that fails shows in health(), and stays
  // pending.
  virtual bool fetch(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
    static_cast<void>(space), static_cast<void>(runs), static_cast<void>(count);
    return false;
  }
  // The group failed, and callers' tensors are about to go: from here on nothing is read from or written to memory that callers own, no
  // fetch ends any more, no new one starts; frames still travel. False: the transport cannot stop, and such memory must stay until the
  // process ends.
  virtual bool stopFetches() { return true; }
  // GB/s of read() as measured when the connection was made; 0 when it cannot read.
  virtual double readGBps() const = 0;

  // Ok while the peer lives and listens; kPeerFailed naming the rank, with the reason, once it died or left. Cheap: called in wait loops.
  virtual Status health() = 0;
  // "rank 1: shm, cross-memory reads 7.2 GB/s"
  virtual std::string describe() const = 0;
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

// This rank's bell: peers ring it when they commit or release a frame while it is armed. Shared by all connections and threads of a group.
//
// To sleep without losing a wake-up: ticket = arm(), look once more for work, sleep(ticket, until). Any thread may disarm() while others
// sleep; whoever does must arm() again before it goes while they are still asleep.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  // From here on every commit or release by a peer rings, once; then the bell is disarmed. Returns the count of rings so far.
  virtual std::uint32_t arm() = 0;
  // Peers need not ring: somebody is looking anyway. A ring may still come.
  virtual void disarm() = 0;
  // The count of rings so far, without arming: for sleepers that only ringSelf() shall wake.
  virtual std::uint32_t ticket() const = 0;
  // Returns when rung since `ticket`, at `until`, after longestSleep() (100 ms), or spuriously.
  virtual void sleep(std::uint32_t ticket, Deadline until) = 0;
  // Wakes sleepers of this process: used to hand over between threads of one rank.
  virtual void ringSelf() = 0;

  // The mark by which peers notice this rank's death at once, even when freeing its memory takes the kernel long: called once, on a thread
  // that lives as long as the group.
  virtual void holdLiveness() = 0;
  // Tells the peers that this rank goes in an orderly way. Called on the thread that called holdLiveness(), or on any if none did.
  virtual void leave() = 0;
};

}  // namespace shardwire::internal
