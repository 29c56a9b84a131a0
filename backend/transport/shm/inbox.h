// The segment of shared memory into which the peers of one rank of one group write: a header (doorbell, state) and, for each peer, what
// it could read of the owner's memory, and one ring per lane. It lies in the arena of its rank's process, which the peers' processes have.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>

#include "backend/base/mapping.h"
#include "backend/base/random_id.h"
#include "backend/fabric/rank_bell.h"
#include "backend/transport/frame_ring.h"
#include "backend/transport/lanes.h"
#include "backend/transport/transport.h"
#include "shardwire/options.h"

namespace shardwire::internal {

class ShmFabric;
struct ShmLiveness;
struct ShmProcessPage;

inline constexpr std::uint64_t kInboxMagic = 0x584f424e49575348;  // "HSWINBOX" as bytes
inline constexpr std::uint32_t kInboxVersion = 6;
inline constexpr std::size_t kInboxPage = 4096;

enum class RankState : std::uint32_t { kAlive = 0, kLeft = 1 };

struct InboxHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t worldSize;
  RandomId id;
  std::array<std::uint64_t, kNumLanes> laneBytes;  // capacities; powers of two
  BellWords bell;                                  // whoever changes a ring must ring it if it is armed: see ringIfArmed()
  alignas(64) std::atomic<std::uint32_t> state;    // RankState
  std::atomic<std::uint32_t> withdrawn;            // 1: the owner's callers have their tensors back, whoever still reads them
  // Peers that said in their slots that they are there: a bit for each behind the header (Inbox::announcedWords), and how many did.
  alignas(64) std::atomic<std::uint32_t> numAnnounced;
  std::atomic<std::uint32_t> awaitsAnnouncements;  // 1: each is to wake the owner's process, whatever it does

  // Why the owner gave up, before it left; written before kLeft. Text up to a zero byte; nobody trusts its length.
  alignas(64) std::uint32_t wordCode;  // StatusCode; 0: there is no word
  std::array<char, 1024> word;

  static constexpr std::size_t kAnnouncedOffset = 1536;
};
static_assert(sizeof(InboxHeader) <= InboxHeader::kAnnouncedOffset);

enum class ReaderState : std::uint32_t { kNone = 0, kHere = 1, kGone = 2 };

// What the peer of a slot tells the owner. Written by the peer before it stores kHere; the owner trusts no length in it.
struct SlotReader {
  static constexpr std::size_t kTextBytes = 1024;
  std::atomic<std::uint32_t> state;  // ReaderState; seq_cst
  RandomId process;
  double readGBps;  // of the owner's ordinary memory; 0: it does not read that, for the reason
  std::array<char, kTextBytes> reason;
  std::array<char, kTextBytes> whyNoHeap;  // why the owner's heap is not mapped there; empty: it is
};

// What the owner tells the peer of a slot that it cannot join. Written before the code, which is not ok then; nobody trusts the text's
// length.
struct SlotRefusal {
  std::atomic<std::uint32_t> code;  // StatusCode
  std::array<char, 892> text;
};

// As much as fits, and a zero byte.
void writeText(std::span<char> to, std::string_view text);
// Up to a zero byte.
std::string readText(std::span<const char> from);

// Of the header with the bits behind it, in whole pages.
std::size_t inboxHeaderBytes(int worldSize);
// Bytes of one peer's part: a page of ring words and of what the peer tells, then the lanes' data.
std::size_t slotBytes(const std::array<std::uint64_t, kNumLanes>& laneBytes);

struct InboxSlot {
  RingWords* words(Lane lane) const { return reinterpret_cast<RingWords*>(bytes) + static_cast<int>(lane); }
  SlotReader* reader() const { return reinterpret_cast<SlotReader*>(bytes + kReaderOffset); }
  SlotRefusal* refusal() const { return reinterpret_cast<SlotRefusal*>(bytes + kRefusalOffset); }
  std::byte* laneData(Lane lane) const;

  static constexpr std::size_t kReaderOffset = 1024;
  static constexpr std::size_t kRefusalOffset = 3136;
  static_assert(kNumLanes * sizeof(RingWords) <= kReaderOffset && kReaderOffset + sizeof(SlotReader) <= kRefusalOffset &&
                kRefusalOffset + sizeof(SlotRefusal) <= kInboxPage);

  std::byte* bytes = nullptr;
  std::array<std::uint64_t, kNumLanes> laneBytes{};
};

// An inbox as mapped here: one's own whole, or of a peer's the header and the slot that is ours.
class Inbox {
 public:
  // Makes an inbox in this process's arena, which all of this process can find by its id.
  static Result<std::shared_ptr<Inbox>> create(int worldSize, const Options& options, std::shared_ptr<ShmFabric> fabric);
  // The inbox of another rank of this process, so that both ends use the same addresses; null when there is none.
  static std::shared_ptr<Inbox> findInProcess(const RandomId& id);
  // Where a peer's inbox lies: in an arena of `arenaBytes` (checked), as its rank says.
  struct At {
    int arenaFd = -1;
    std::uint64_t arenaBytes = 0;
    std::uint64_t offset = 0;
    RandomId id;
    ShmProcessPage* page = nullptr;         // of its process; outlives the inbox
    const ShmLiveness* liveness = nullptr;  // likewise
  };
  // Maps a peer's inbox after checking its place and its header; `slot` is the rank that will write into it. kPeerFailed: it is there no
  // more.
  static Result<std::shared_ptr<Inbox>> map(const At& at, Rank owner, int worldSize, Rank slot);

  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  int worldSize() const { return worldSize_; }
  InboxHeader& header() const { return *reinterpret_cast<InboxHeader*>(header_.bytes()); }
  InboxSlot slot(Rank peer) const;
  const RandomId& id() const { return id_; }
  std::uint64_t offset() const { return offset_; }
  // Of its group; for ranks of this process, which need no link to find it.
  const std::string& jobToken() const { return jobToken_; }
  const std::shared_ptr<ShmFabric>& fabric() const { return fabric_; }

  // Rings the owner's bell if it is armed. After a change of a ring that was stored seq_cst.
  void ringIfArmed() const;

  // What rank `self` says in its slot is said: the owner finds it among the announced.
  void announce(Rank self) const;
  // Of the owner: a change since `seen`, which counts them, and the ranks announced so far, by bit.
  std::uint32_t numAnnounced() const { return header().numAnnounced.load(std::memory_order_seq_cst); }
  std::uint64_t announcedWord(std::size_t index) const { return announcedWords()[index].load(std::memory_order_seq_cst); }
  void awaitAnnouncements() { header().awaitsAnnouncements.store(1, std::memory_order_seq_cst); }

  // Of the owner: that peer cannot be joined. Who comes to this inbox nevertheless finds why.
  void refuse(Rank peer, const Status& why);
  // Of a peer's inbox: why its owner cannot join rank `self`; nothing while it has not said so.
  std::optional<Status> refusalOf(Rank self) const;

  // The owner's liveness, from any process.
  bool ownerDied() const;
  bool ownerLeft() const;
  // The owner gave its memory back, which it does when nobody had it: what this rank wrote into it since is lost.
  bool isGivenBack() const { return header().magic == 0; }
  // Whether what was read of the owner's memory so far may have been changed while it was read: see Connection::hasWithdrawn().
  bool ownerWithdrew() const;
  void leaveWord(const Status& why);
  // Of an owner that left: what it said, if anything.
  std::optional<Status> lastWord() const;
  void markLeft();
  // Before the owner's callers may touch what peers may still be reading. Waits for reads by ranks of this process, which end by
  // themselves.
  void markWithdrawn();
  // Held, shared, by ranks of this process that read the owner's memory.
  std::shared_mutex& readers() { return readers_; }

 private:
  Inbox() = default;
  void ringProgress() const;
  // Leaves the memory to the fabric until no peer can write to it any more.
  void leaveMemory();
  std::atomic<std::uint64_t>* announcedWords() const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(header_.bytes() + InboxHeader::kAnnouncedOffset);
  }

  std::shared_ptr<ShmFabric> fabric_;  // null: a peer's
  std::uint64_t offset_ = 0;
  std::string jobToken_;
  int worldSize_ = 0;
  ShmProcessPage* page_ = nullptr;
  const ShmLiveness* liveness_ = nullptr;
  Mapping header_;
  Mapping slots_;
  std::array<std::uint64_t, kNumLanes> laneBytes_{};  // as checked once: the shared words are not trusted again
  Rank onlySlot_ = -1;                                // a peer's inbox: the one slot that slots_ holds; -1: all
  RandomId id_;                                       // zero: a peer's
  std::shared_mutex readers_;
};

}  // namespace shardwire::internal
