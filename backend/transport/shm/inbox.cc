#include "backend/transport/shm/inbox.h"

#include <errno.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <map>
#include <new>

#include "backend/base/futex.h"
#include "backend/base/log.h"
#include "backend/base/memfd.h"
#include "backend/base/mutex.h"
#include "backend/base/system_error.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kMinLaneBytes = 4096;
constexpr std::uint64_t kMaxLaneBytes = std::uint64_t{1} << 31;

// Ranks of one process share each other's inbox at one address. Process-wide by nature; entries go with their inboxes.
struct InProcess {
  Mutex mutex;
  std::map<RandomId, std::weak_ptr<Inbox>> inboxes SW_GUARDED_BY(mutex);
};
InProcess& inProcess() {
  static auto* registry = new InProcess;  // never destroyed: inboxes may outlive static destructors
  return *registry;
}

Status checkHeader(const InboxHeader& header, const std::array<std::uint64_t, kNumLanes>& laneBytes, Rank owner, int worldSize) {
  if (header.magic != kInboxMagic || header.version != kInboxVersion) {
    return {StatusCode::kUnsupported,
            fmt::format("rank {} runs another build of shardwire: its inbox has magic {:x} version {}, this rank's {:x} version {}", owner,
                        header.magic, header.version, kInboxMagic, kInboxVersion)};
  }
  if (header.worldSize != static_cast<std::uint32_t>(worldSize)) {
    return {StatusCode::kMismatch, fmt::format("rank {} counts {} ranks, this rank {}", owner, header.worldSize, worldSize)};
  }
  for (const std::uint64_t bytes : laneBytes) {
    if (!std::has_single_bit(bytes) || bytes < kMinLaneBytes || bytes > kMaxLaneBytes) {
      return {StatusCode::kMismatch, fmt::format("rank {} announces a ring of {} bytes", owner, bytes)};
    }
  }
  return Status::ok();
}

Status initLiveness(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  int error = ::pthread_mutexattr_init(&attributes);
  if (error == 0) {
    error = ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  }
  if (error == 0) {
    error = ::pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  }
  if (error == 0) {
    error = ::pthread_mutex_init(mutex, &attributes);
  }
  ::pthread_mutexattr_destroy(&attributes);
  return error == 0 ? Status::ok() : systemError("cannot make the liveness mutex", error);
}

}  // namespace

std::size_t slotBytes(const std::array<std::uint64_t, kNumLanes>& laneBytes) {
  std::size_t bytes = kInboxPage;
  for (const std::uint64_t lane : laneBytes) {
    bytes += lane;
  }
  return bytes;
}

std::byte* InboxSlot::laneData(Lane lane) const {
  std::byte* at = bytes + kInboxPage;
  for (int i = 0; i < static_cast<int>(lane); ++i) {
    at += laneBytes[static_cast<std::size_t>(i)];
  }
  return at;
}

Result<std::shared_ptr<Inbox>> Inbox::create(int worldSize, const Options& options) {
  std::shared_ptr<Inbox> inbox(new Inbox);
  const auto lanes = laneCapacities(options);
  const std::size_t allSlots = slotBytes(lanes) * static_cast<std::size_t>(worldSize);
  auto fd = makeMemfd("shardwire-inbox", kInboxPage + allSlots);
  SW_RETURN_IF_ERROR(fd.status());
  inbox->fd_ = std::move(*fd);
  auto header = Mapping::shared(inbox->fd(), 0, kInboxPage, Access::kReadWrite, "the inbox header");
  SW_RETURN_IF_ERROR(header.status());
  inbox->header_ = std::move(*header);
  auto slots = Mapping::shared(inbox->fd(), kInboxPage, allSlots, Access::kReadWrite, "the inbox (see SHARDWIRE_RING_BYTES)");
  SW_RETURN_IF_ERROR(slots.status());
  inbox->slots_ = std::move(*slots);
  InboxHeader* made = new (inbox->header_.bytes()) InboxHeader{};
  made->magic = kInboxMagic;
  made->version = kInboxVersion;
  made->worldSize = static_cast<std::uint32_t>(worldSize);
  made->laneBytes = lanes;
  inbox->laneBytes_ = lanes;
  SW_RETURN_IF_ERROR(initLiveness(&made->liveness));
  const auto id = makeRandomId();
  SW_RETURN_IF_ERROR(id.status());
  inbox->id_ = *id;
  InProcess& registry = inProcess();
  const MutexLock lock(registry.mutex);
  registry.inboxes[inbox->id_] = inbox;
  return inbox;
}

std::shared_ptr<Inbox> Inbox::findInProcess(const RandomId& id) {
  InProcess& registry = inProcess();
  const MutexLock lock(registry.mutex);
  const auto found = registry.inboxes.find(id);
  return found == registry.inboxes.end() ? nullptr : found->second.lock();
}

Result<std::shared_ptr<Inbox>> Inbox::map(int fd, Rank owner, int worldSize, Rank slot) {
  std::shared_ptr<Inbox> inbox(new Inbox);
  struct stat status {};
  if (::fstat(fd, &status) != 0) {
    return systemError(fmt::format("fstat of rank {}'s inbox", owner), errno);
  }
  SW_RETURN_IF_ERROR(checkMemfd(fd, static_cast<std::uint64_t>(status.st_size)));  // the size itself is checked below
  if (status.st_size < static_cast<off_t>(kInboxPage)) {
    return Status{StatusCode::kMismatch, fmt::format("rank {} handed over an inbox of {} bytes", owner, status.st_size)};
  }
  auto header = Mapping::shared(fd, 0, kInboxPage, Access::kReadWrite, "a peer's inbox header");
  SW_RETURN_IF_ERROR(header.status());
  inbox->header_ = std::move(*header);
  inbox->laneBytes_ = inbox->header().laneBytes;
  SW_RETURN_IF_ERROR(checkHeader(inbox->header(), inbox->laneBytes_, owner, worldSize));
  const std::size_t oneSlot = slotBytes(inbox->laneBytes_);
  const std::size_t expected = kInboxPage + oneSlot * static_cast<std::size_t>(worldSize);
  if (static_cast<std::size_t>(status.st_size) != expected) {
    return Status{StatusCode::kMismatch,
                  fmt::format("rank {} handed over an inbox of {} bytes where {} are due", owner, status.st_size, expected)};
  }
  auto slots =
      Mapping::shared(fd, kInboxPage + oneSlot * static_cast<std::size_t>(slot), oneSlot, Access::kReadWrite, "a slot of a peer's inbox");
  SW_RETURN_IF_ERROR(slots.status());
  inbox->slots_ = std::move(*slots);
  inbox->onlySlot_ = slot;
  return inbox;
}

Inbox::~Inbox() {
  if (!id_.isZero()) {
    InProcess& registry = inProcess();
    const MutexLock lock(registry.mutex);
    registry.inboxes.erase(id_);
  }
  if (held_.load(std::memory_order_acquire)) {
    // The C library keeps the address of a held robust mutex in a list of the thread: the page must stay.
    logError("an inbox was dropped while its liveness mark is held; its header stays mapped");
    header_.leak();
  }
}

InboxSlot Inbox::slot(Rank peer) const {
  InboxSlot slot;
  slot.laneBytes = laneBytes_;
  SW_CHECK(onlySlot_ == -1 || onlySlot_ == peer);
  slot.bytes = slots_.bytes() + (onlySlot_ == -1 ? slotBytes(slot.laneBytes) * static_cast<std::size_t>(peer) : 0);
  return slot;
}

void Inbox::ringIfArmed() const {
  // seq_cst load after a seq_cst store to a ring word; the owner stores `armed` and then loads the ring word, both seq_cst too. So either
  // we see its bell armed or it sees our change.
  if (header().armed.load(std::memory_order_seq_cst) != 0) {
    ring();
  }
}

void Inbox::ring() const {
  InboxHeader& to = header();
  // One of several peers that see the armed bell rings it; the others' changes are before its ring or seen by the woken owner's look.
  if (to.armed.exchange(0, std::memory_order_seq_cst) != 0) {
    to.bell.fetch_add(1, std::memory_order_seq_cst);
    futexWakeAll(to.bell);
  }
}

bool Inbox::ownerDied() const {
  // The C library's lock word of a robust mutex is the futex the kernel knows: the owner's thread id, or FUTEX_OWNER_DIED once that thread
  // ended without unlocking. Reading it blocks nobody and takes nothing over, unlike a trylock.
  static_assert(sizeof(InboxHeader::liveness.__data.__lock) == sizeof(std::uint32_t));
  // Relaxed: nothing is published by it.
  const int word = __atomic_load_n(&header().liveness.__data.__lock, __ATOMIC_RELAXED);
  return (static_cast<std::uint32_t>(word) & FUTEX_OWNER_DIED) != 0;
}

bool Inbox::ownerLeft() const {
  constexpr auto kLeft = static_cast<std::uint32_t>(RankState::kLeft);
  const std::atomic<std::uint32_t>& state = header().state;
  // The acquire pairs with markLeft(): whatever the owner committed before is visible. It is not needed while there is nothing to see.
  return state.load(std::memory_order_relaxed) == kLeft && state.load(std::memory_order_acquire) == kLeft;
}

void Inbox::holdLiveness() {
  SW_CHECK(!held_.load(std::memory_order_acquire));
  const int error = ::pthread_mutex_lock(&header().liveness);
  SW_CHECK(error == 0);
  held_.store(true, std::memory_order_release);
}

void Inbox::markLeft() {
  header().state.store(static_cast<std::uint32_t>(RankState::kLeft), std::memory_order_release);
}

void Inbox::leave() {
  markLeft();
  if (held_.load(std::memory_order_acquire)) {
    const int error = ::pthread_mutex_unlock(&header().liveness);
    SW_CHECK(error == 0);  // EPERM: not the thread that called holdLiveness()
    held_.store(false, std::memory_order_release);
  }
}

}  // namespace shardwire::internal
