// The segment of shared memory into which the peers of one rank of one group write: a header (doorbell, state) and, for
// each peer, a report of the owner's memory readable by the peer, and one ring per lane. The inbox lies in the arena of
// its rank's process, which the peers' processes map.
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
inline constexpr std::uint32_t kInboxVersion = 8;
inline constexpr std::size_t kInboxPage = 4096;  // of a slot before the data of its lanes

enum class RankState : std::uint32_t { kAlive = 0, kLeft = 1 };

struct InboxHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t worldSize;
  RandomId id;
  std::array<std::uint64_t, kNumLanes> laneBytes;  // capacities; powers of two
  BellWords bell;                                  // rung, if armed, by a peer that changes a ring: ringIfArmed()
  alignas(64) std::atomic<std::uint32_t> state;    // RankState
  // 1: the owner's callers have their tensors back, even if peers still read the tensors.
  std::atomic<std::uint32_t> withdrawn;
  // Peers announced in their slots: a bit for each behind the header (Inbox::announcedWords), and the count of
  // announcements.
  alignas(64) std::atomic<std::uint32_t> numAnnounced;
  // 1: each announcement must wake the owner's process, whatever the process does.
  std::atomic<std::uint32_t> awaitsAnnouncements;

  // The reason why the owner gave up, before it left; written before kLeft. Text up to a zero byte; readers do not
  // trust the length.
  alignas(64) std::uint32_t wordCode;  // StatusCode; 0: the owner left no reason
  std::array<char, 1024> word;

  static constexpr std::size_t kAnnouncedOffset = 1536;
};
static_assert(sizeof(InboxHeader) <= InboxHeader::kAnnouncedOffset);

enum class ReaderState : std::uint32_t { kNone = 0, kHere = 1, kGone = 2 };

// The report of a slot's peer to the owner. Written by the peer before kHere; the owner trusts no length inside.
struct SlotReader {
  static constexpr std::size_t kTextBytes = 1024;
  std::atomic<std::uint32_t> state;  // ReaderState; seq_cst
  RandomId process;
  double readGBps;  // of the owner's ordinary memory; 0: the peer does not read this memory, for the reason below
  std::array<char, kTextBytes> reason;
  std::array<char, kTextBytes> whyNoHeap;  // why the peer has not mapped the owner's heap; empty: the heap is mapped
};

// The owner's report to a slot's peer that the owner cannot join the peer. The text is written before the code, which
// is then not ok; readers do not trust the text's length.
struct SlotRefusal {
  std::atomic<std::uint32_t> code;  // StatusCode
  std::array<char, 892> text;
};

// Writes as much of the text as fits, and a zero byte.
void writeText(std::span<char> to, std::string_view text);
// The text up to a zero byte.
std::string readText(std::span<const char> from);

// Bytes of the header with the bits behind it, in whole pages.
std::size_t inboxHeaderBytes(int worldSize);
// Bytes of one peer's part, in whole pages: ring words and the peer's report, then the lanes' data.
std::size_t slotBytes(const std::array<std::uint64_t, kNumLanes>& laneBytes);

struct InboxSlot {
  RingWords* words(Lane lane) const { return reinterpret_cast<RingWords*>(bytes) + static_cast<int>(lane); }
  SlotReader* reader() const { return reinterpret_cast<SlotReader*>(bytes + kReaderOffset); }
  SlotRefusal* refusal() const { return reinterpret_cast<SlotRefusal*>(bytes + kRefusalOffset); }
  std::byte* laneData(Lane lane) const;

  static constexpr std::size_t kReaderOffset = 1024;
  static constexpr std::size_t kRefusalOffset = 3136;
  static_assert(kNumLanes * sizeof(RingWords) <= kReaderOffset &&
                kReaderOffset + sizeof(SlotReader) <= kRefusalOffset &&
                kRefusalOffset + sizeof(SlotRefusal) <= kInboxPage);

  std::byte* bytes = nullptr;
  std::array<std::uint64_t, kNumLanes> laneBytes{};
};

// An inbox as mapped here: the whole own inbox, or the header and this rank's slot of a peer's inbox.
class Inbox {
 public:
  // Makes an inbox in this process's arena. All code of this process can find the inbox by its id.
  static Result<std::shared_ptr<Inbox>> create(int worldSize, const Options& options,
                                               std::shared_ptr<ShmFabric> fabric);
  // The inbox of another rank of this process, so both ends use the same addresses; null when there is none.
  static std::shared_ptr<Inbox> findInProcess(const RandomId& id);
  // The place of a peer's inbox, in an arena of `arenaBytes` (checked), as claimed by the peer.
  struct At {
    int arenaFd = -1;
    std::uint64_t arenaBytes = 0;
    std::uint64_t offset = 0;
    RandomId id;
    ShmProcessPage* page = nullptr;         // of the peer's process; outlives the inbox
    const ShmLiveness* liveness = nullptr;  // of the peer's process; outlives the inbox
  };
  // Maps a peer's inbox after checking the place and the header; `slot` is the rank that will write into the inbox.
  // kPeerFailed: the inbox is not there any more.
  static Result<std::shared_ptr<Inbox>> map(const At& at, Rank owner, int worldSize, Rank slot);

  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  int worldSize() const { return worldSize_; }
  InboxHeader& header() const { return *reinterpret_cast<InboxHeader*>(header_.bytes()); }
  InboxSlot slot(Rank peer) const;
  const RandomId& id() const { return id_; }
  std::uint64_t offset() const { return offset_; }
  // The job token of the group; for ranks of this process, which need no link to find the inbox.
  const std::string& jobToken() const { return jobToken_; }
  const std::shared_ptr<ShmFabric>& fabric() const { return fabric_; }

  // Rings the owner's bell if it is armed. Called after a seq_cst change of a ring.
  void ringIfArmed() const;

  // The report in the slot of rank `self` is complete: the owner finds `self` among the announced ranks.
  void announce(Rank self) const;
  // For the owner: the count of announcements, which shows a change, and the ranks announced so far, by bit.
  std::uint32_t numAnnounced() const { return header().numAnnounced.load(std::memory_order_seq_cst); }
  std::uint64_t announcedWord(std::size_t index) const {
    return announcedWords()[index].load(std::memory_order_seq_cst);
  }
  void awaitAnnouncements() { header().awaitsAnnouncements.store(1, std::memory_order_seq_cst); }

  // For the owner: that peer cannot be joined. A peer that attaches to this inbox nevertheless finds the reason.
  void refuse(Rank peer, const Status& why);
  // In a peer's inbox: why the owner cannot join rank `self`; nothing while the owner has not reported a reason.
  std::optional<Status> refusalOf(Rank self) const;

  // The owner's liveness, from any process.
  bool ownerDied() const;
  bool ownerLeft() const;
  // The owner gave the memory back, which happens when no peer has it: everything written here by this rank since is
  // lost.
  bool isGivenBack() const { return header().magic == 0; }
  // Whether the owner's memory may have changed during the reads so far: see Connection::hasWithdrawn().
  bool ownerWithdrew() const;
  void leaveWord(const Status& why);
  // The reason of an owner that left, if there is one.
  std::optional<Status> lastWord() const;
  void markLeft();
  // Called before the owner's callers may touch memory that peers may still be reading. Waits for reads by ranks of
  // this process, which end by themselves.
  void markWithdrawn();
  // Ranks of this process hold this lock, shared, while they read the owner's memory.
  std::shared_mutex& readers() { return readers_; }

 private:
  Inbox() = default;
  void ringProgress() const;
  // Leaves the memory to the fabric until no peer can write there any more.
  void leaveMemory();
  std::atomic<std::uint64_t>* announcedWords() const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(header_.bytes() + InboxHeader::kAnnouncedOffset);
  }

  std::shared_ptr<ShmFabric> fabric_;  // null: a peer's inbox
  std::uint64_t offset_ = 0;
  std::string jobToken_;
  int worldSize_ = 0;
  ShmProcessPage* page_ = nullptr;
  const ShmLiveness* liveness_ = nullptr;
  Mapping header_;
  Mapping slots_;
  std::array<std::uint64_t, kNumLanes> laneBytes_{};  // as checked once: the shared words are not read again
  Rank onlySlot_ = -1;                                // a peer's inbox: the one slot that slots_ holds; -1: all
  RandomId id_;                                       // zero: a peer's inbox
  std::shared_mutex readers_;
};

}  // namespace shardwire::internal
