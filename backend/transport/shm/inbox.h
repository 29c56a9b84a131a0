// The segment of shared memory into which the peers of one rank write: a header (doorbell, liveness) and, for each peer, one ring per lane.
// Made by its rank as an anonymous, sealed memfd and handed to each peer over a socket; it needs no name and outlives nobody.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "backend/base/fd.h"
#include "backend/base/mapping.h"
#include "backend/base/random_id.h"
#include "backend/transport/lanes.h"
#include "backend/transport/shm/frame_ring.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

inline constexpr std::uint64_t kInboxMagic = 0x584f424e49575348;  // "HSWINBOX" as bytes
inline constexpr std::uint32_t kInboxVersion = 1;
inline constexpr std::size_t kInboxPage = 4096;

enum class RankState : std::uint32_t { kAlive = 0, kLeft = 1 };

struct InboxHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t worldSize;
  std::array<std::uint64_t, kNumLanes> laneBytes;  // capacities; powers of two
  // Doorbell: see ShmDoorbell.
  alignas(64) std::atomic<std::uint32_t> bell;  // counts rings; sleepers wait on it
  std::atomic<std::uint32_t> armed;             // 1: whoever changes a ring must ring the bell
  // Liveness: the owner's thread holds the robust mutex as long as the group lives; the kernel marks it when that thread dies.
  alignas(64) std::atomic<std::uint32_t> state;  // RankState
  pthread_mutex_t liveness;
};
static_assert(sizeof(InboxHeader) <= kInboxPage);

// Bytes of one peer's part: a page of ring words, then the lanes' data.
std::size_t slotBytes(const std::array<std::uint64_t, kNumLanes>& laneBytes);

struct InboxSlot {
  RingWords* words(Lane lane) const { return reinterpret_cast<RingWords*>(bytes) + static_cast<int>(lane); }
  std::byte* laneData(Lane lane) const;

  std::byte* bytes = nullptr;
  std::array<std::uint64_t, kNumLanes> laneBytes{};
};

// An inbox as mapped here: one's own whole, or of a peer's the header and the slot that is ours.
class Inbox {
 public:
  // Makes the inbox of rank `rank`, which all of this process can find by its id.
  static Result<std::shared_ptr<Inbox>> create(int worldSize, const Options& options);
  // The inbox of another rank of this process, so that both ends use the same addresses; null when there is none.
  static std::shared_ptr<Inbox> findInProcess(const RandomId& id);
  // Maps a peer's inbox after checking its size, its seals and its header; `slot` is the rank that will write into it.
  static Result<std::shared_ptr<Inbox>> map(int fd, Rank owner, int worldSize, Rank slot);

  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  InboxHeader& header() const { return *reinterpret_cast<InboxHeader*>(header_.bytes()); }
  InboxSlot slot(Rank peer) const;
  const RandomId& id() const { return id_; }
  int fd() const { return fd_.get(); }
  // Once all peers have it.
  void closeFd() { fd_.reset(); }

  // Rings the owner's bell if it is armed. After a change of a ring that was stored seq_cst.
  void ringIfArmed() const;
  void ring() const;

  // The owner's liveness, from any process.
  bool ownerDied() const;
  bool ownerLeft() const;
  void holdLiveness();
  // Sets the state only; leave() also gives up the liveness mark, on the thread that holds it.
  void markLeft();
  void leave();

 private:
  Inbox() = default;

  Fd fd_;
  Mapping header_;
  Mapping slots_;
  std::array<std::uint64_t, kNumLanes> laneBytes_{};  // as checked once: the shared words are not trusted again
  Rank onlySlot_ = -1;                                // a peer's inbox: the one slot that slots_ holds; -1: all
  RandomId id_;                                       // zero: a peer's
  std::atomic<bool> held_{false};
};

}  // namespace shardwire::internal
