// An inbox lies at a place of its process's arena that no other inbox ever gets. The owner maps the whole inbox. A peer
// maps the header and the peer's own slot, after checking the place and the header, since the address came through the
// store. Lengths are read once and never trusted again. Both sides check some words before they sleep; these words are
// sequentially consistent: the bell with the rings, and announcements with the request to be woken. When the owner
// leaves, the memory stays until every announced peer has left its slot, or has ended.
#include "backend/transport/shm/inbox.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <new>

#include "backend/base/fence.h"
#include "backend/base/futex.h"
#include "backend/base/log.h"
#include "backend/base/mutex.h"
#include "backend/base/page_size.h"
#include "backend/base/per_process.h"
#include "backend/base/system_error.h"
#include "backend/transport/shm/shm_fabric.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kMinLaneBytes = 4096;
constexpr std::uint64_t kFrameHeads = 1024;  // at most, before the bytes of a message
constexpr std::uint64_t kMaxLaneBytes = std::uint64_t{1} << 31;

// Ranks of one process share each other's inbox at one address. Process-wide by nature; an entry is removed with its
// inbox.
struct InProcess {
  Mutex mutex;
  std::map<RandomId, std::weak_ptr<Inbox>> inboxes SW_GUARDED_BY(mutex);
};

Status checkHeader(const InboxHeader& header, const std::array<std::uint64_t, kNumLanes>& laneBytes, const RandomId& id,
                   Rank owner, int worldSize) {
  if (header.magic == 0) {
    return {StatusCode::kPeerFailed, fmt::format("rank {} has left", owner)};
  }
  if (header.magic != kInboxMagic || header.version != kInboxVersion) {
    return {
        StatusCode::kUnsupported,
        fmt::format(
            "rank {} runs another build of shardwire: its inbox has magic {:x} version {}, this rank's {:x} version {}",
            owner, header.magic, header.version, kInboxMagic, kInboxVersion)};
  }
  if (header.worldSize != static_cast<std::uint32_t>(worldSize)) {
    return {StatusCode::kMismatch,
            fmt::format("rank {} counts {} ranks, this rank {}", owner, header.worldSize, worldSize)};
  }
  if (header.id != id) {
    return {StatusCode::kMismatch, fmt::format("rank {}'s published inbox address belongs to another inbox: the store "
                                               "probably holds addresses of an earlier job",
                                               owner)};
  }
  for (const std::uint64_t bytes : laneBytes) {
    if (!std::has_single_bit(bytes) || bytes < kMinLaneBytes || bytes > kMaxLaneBytes) {
      return {StatusCode::kMismatch, fmt::format("rank {} announces a ring of {} bytes", owner, bytes)};
    }
  }
  return Status::ok();
}

}  // namespace

void writeText(std::span<char> to, std::string_view text) {
  const std::size_t size = std::min(text.size(), to.size() - 1);
  std::copy_n(text.begin(), size, to.begin());
  to[size] = 0;
}

std::string readText(std::span<const char> from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
}

std::size_t inboxHeaderBytes(int worldSize) {
  const std::size_t words = (static_cast<std::size_t>(worldSize) + 63) / 64;
  return inWholePages(InboxHeader::kAnnouncedOffset + words * sizeof(std::uint64_t));
}

std::size_t slotBytes(const std::array<std::uint64_t, kNumLanes>& laneBytes) {
  std::size_t bytes = kInboxPage;
  for (const std::uint64_t lane : laneBytes) {
    bytes += lane;
  }
  return inWholePages(bytes);
}

std::byte* InboxSlot::laneData(Lane lane) const {
  std::byte* at = bytes + kInboxPage;
  for (int i = 0; i < static_cast<int>(lane); ++i) {
    at += laneBytes[static_cast<std::size_t>(i)];
  }
  return at;
}

Result<std::shared_ptr<Inbox>> Inbox::create(int worldSize, const Options& options, std::shared_ptr<ShmFabric> fabric) {
  std::shared_ptr<Inbox> inbox(new Inbox);
  // A ring takes memory only where frames were, so the control lane has room for eager messages.
  auto lanes = laneCapacities(options);
  std::uint64_t& control = lanes[static_cast<std::size_t>(Lane::kControl)];
  control = std::max(control, std::bit_ceil(std::uint64_t{4} * (eagerBytes(options) + kFrameHeads)));
  const std::size_t allSlots = slotBytes(lanes) * static_cast<std::size_t>(worldSize);
  const std::size_t headerBytes = inboxHeaderBytes(worldSize);
  fabric->clearRemains();
  const auto offset = fabric->arena().take(headerBytes + allSlots);
  SW_RETURN_IF_ERROR(offset.status());
  const int fd = fabric->arena().fd();
  auto header = Mapping::shared(fd, *offset, headerBytes, Access::kReadWrite, "the inbox header");
  SW_RETURN_IF_ERROR(header.status());
  inbox->header_ = std::move(*header);
  auto slots =
      Mapping::shared(fd, *offset + headerBytes, allSlots, Access::kReadWrite, "the inbox (see SHARDWIRE_RING_BYTES)");
  SW_RETURN_IF_ERROR(slots.status());
  inbox->slots_ = std::move(*slots);
  const auto id = makeRandomId();
  SW_RETURN_IF_ERROR(id.status());
  InboxHeader* made = new (inbox->header_.bytes()) InboxHeader{};
  made->magic = kInboxMagic;
  made->version = kInboxVersion;
  made->worldSize = static_cast<std::uint32_t>(worldSize);
  made->id = *id;
  made->laneBytes = lanes;
  inbox->laneBytes_ = lanes;
  inbox->id_ = *id;
  inbox->offset_ = *offset;
  inbox->jobToken_ = options.jobToken;
  inbox->worldSize_ = worldSize;
  inbox->page_ = &fabric->page();
  inbox->liveness_ = &fabric->liveness();
  inbox->fabric_ = std::move(fabric);
  InProcess& registry = PerProcess<InProcess>::get();
  const MutexLock lock(registry.mutex);
  registry.inboxes[inbox->id_] = inbox;
  return inbox;
}

std::shared_ptr<Inbox> Inbox::findInProcess(const RandomId& id) {
  InProcess& registry = PerProcess<InProcess>::get();
  const MutexLock lock(registry.mutex);
  const auto found = registry.inboxes.find(id);
  return found == registry.inboxes.end() ? nullptr : found->second.lock();
}

Result<std::shared_ptr<Inbox>> Inbox::map(const At& at, Rank owner, int worldSize, Rank slot) {
  const std::size_t headerBytes = inboxHeaderBytes(worldSize);
  const auto outside = [&] {
    return Status{StatusCode::kMismatch, fmt::format("rank {}'s published inbox address is invalid: byte {} of {}",
                                                     owner, at.offset, at.arenaBytes)};
  };
  if (at.offset % pageBytes() != 0 || at.offset > at.arenaBytes || at.arenaBytes - at.offset < headerBytes) {
    return outside();
  }
  std::shared_ptr<Inbox> inbox(new Inbox);
  auto header = Mapping::shared(at.arenaFd, at.offset, headerBytes, Access::kReadWrite, "a peer's inbox header");
  SW_RETURN_IF_ERROR(header.status());
  inbox->header_ = std::move(*header);
  inbox->laneBytes_ = inbox->header().laneBytes;
  SW_RETURN_IF_ERROR(checkHeader(inbox->header(), inbox->laneBytes_, at.id, owner, worldSize));
  const std::size_t oneSlot = slotBytes(inbox->laneBytes_);
  const std::uint64_t slots = oneSlot * static_cast<std::uint64_t>(worldSize);
  if (slots > at.arenaBytes - at.offset - headerBytes) {
    return outside();
  }
  auto mapped = Mapping::shared(at.arenaFd, at.offset + headerBytes + oneSlot * static_cast<std::uint64_t>(slot),
                                oneSlot, Access::kReadWrite, "a slot of a peer's inbox");
  SW_RETURN_IF_ERROR(mapped.status());
  inbox->slots_ = std::move(*mapped);
  inbox->onlySlot_ = slot;
  inbox->page_ = at.page;
  inbox->liveness_ = at.liveness;
  return inbox;
}

Inbox::~Inbox() {
  if (!id_.isZero()) {
    InProcess& registry = PerProcess<InProcess>::get();
    const MutexLock lock(registry.mutex);
    registry.inboxes.erase(id_);
  }
  if (fabric_ != nullptr) {
    leaveMemory();
  }
}

// Peers may write to the memory until each peer has left its slot, or its process has ended.
void Inbox::leaveMemory() {
  ShmFabric::Remains remains;
  remains.offset = offset_;
  remains.bytes = header_.size() + slots_.size();
  // Only announced peers are checked: a look at an unused slot would allocate memory. A peer may still attach as long
  // as the header is there. Its writes after the memory was given back would allocate memory again, for as long as the
  // process has groups.
  remains.isFree = [laneBytes = laneBytes_, numPeers = worldSize_, announced = announcedWords(),
                    at = slots_.bytes()](ShmFabric& fabric) {
    for (int peer = 0; peer < numPeers; ++peer) {
      if ((announced[peer / 64].load(std::memory_order_seq_cst) >> (peer % 64) & 1) == 0) {
        continue;
      }
      const SlotReader& reader =
          *InboxSlot{at + slotBytes(laneBytes) * static_cast<std::size_t>(peer), laneBytes}.reader();
      const auto state = static_cast<ReaderState>(reader.state.load(std::memory_order_seq_cst));
      if (state == ReaderState::kHere &&
          (reader.process == fabric.address().process || fabric.fabric().isGuest(reader.process))) {
        return false;
      }
    }
    return true;
  };
  remains.mappings.push_back(std::move(header_));
  remains.mappings.push_back(std::move(slots_));
  fabric_->keepUntilFree(std::move(remains));
}

InboxSlot Inbox::slot(Rank peer) const {
  InboxSlot slot;
  slot.laneBytes = laneBytes_;
  SW_CHECK(onlySlot_ == -1 || onlySlot_ == peer);
  slot.bytes = slots_.bytes() + (onlySlot_ == -1 ? slotBytes(slot.laneBytes) * static_cast<std::size_t>(peer) : 0);
  return slot;
}

void Inbox::ringIfArmed() const {
  internal::ringIfArmed(header().bell, [this] { ringProgress(); });
}

void Inbox::ringProgress() const {
  page_->bell.fetch_add(1, std::memory_order_seq_cst);
  futexWakeAll(page_->bell);
}

// seq_cst throughout: the owner stores `awaitsAnnouncements` before checking the bits. So either the owner sees the
// bit, or this call sees that the owner waits.
void Inbox::announce(Rank self) const {
  const auto at = static_cast<std::size_t>(self);
  announcedWords()[at / 64].fetch_or(std::uint64_t{1} << (at % 64), std::memory_order_seq_cst);
  header().numAnnounced.fetch_add(1, std::memory_order_seq_cst);
  ringIfArmed();
  if (header().awaitsAnnouncements.load(std::memory_order_seq_cst) != 0) {
    ringProgress();
  }
}

void Inbox::refuse(Rank peer, const Status& why) {
  SlotRefusal& to = *slot(peer).refusal();
  writeText(to.text, why.message());
  to.code.store(static_cast<std::uint32_t>(why.code()), std::memory_order_release);
}

std::optional<Status> Inbox::refusalOf(Rank self) const {
  const SlotRefusal& from = *slot(self).refusal();
  const auto code = static_cast<StatusCode>(from.code.load(std::memory_order_acquire));
  return code == StatusCode::kOk ? std::nullopt : std::optional<Status>({code, readText(from.text)});
}

bool Inbox::ownerDied() const {
  return liveness_->isOwnerDead();
}

bool Inbox::ownerLeft() const {
  constexpr auto kLeft = static_cast<std::uint32_t>(RankState::kLeft);
  const std::atomic<std::uint32_t>& state = header().state;
  // The acquire pairs with markLeft(): everything committed by the owner before is visible. The acquire is not needed
  // while the state has not changed.
  return state.load(std::memory_order_relaxed) == kLeft && state.load(std::memory_order_acquire) == kLeft;
}

// The reader copies the data, then loads `withdrawn`. The owner stores `withdrawn`, then returns the tensors. Each side
// has a fence between the two: a store of the owner's caller that a copy saw comes behind the mark. Without the owner's
// fence that store may come first on Arm: a sequentially consistent store or exchange does not hold back later stores.
bool Inbox::ownerWithdrew() const {
  fullFence();
  return header().withdrawn.load(std::memory_order_relaxed) != 0;
}

void Inbox::markWithdrawn() {
  header().withdrawn.store(1, std::memory_order_relaxed);
  fullFence();
  const std::lock_guard noMoreReaders(readers_);  // later readers see the mark
}

void Inbox::leaveWord(const Status& why) {
  InboxHeader& to = header();
  writeText(to.word, why.message());
  to.wordCode = static_cast<std::uint32_t>(why.code());
}

std::optional<Status> Inbox::lastWord() const {
  if (!ownerLeft()) {
    return std::nullopt;  // until then the owner may be writing
  }
  const auto code = static_cast<StatusCode>(header().wordCode);
  return code == StatusCode::kOk ? std::nullopt : std::optional<Status>({code, readText(header().word)});
}

void Inbox::markLeft() {
  header().state.store(static_cast<std::uint32_t>(RankState::kLeft), std::memory_order_release);
}

}  // namespace shardwire::internal
