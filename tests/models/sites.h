// The one table of the atomic operations of shardwire's lock-free protocols: where each is in the source, and its
// memory order. The models (models.h) take their orders from here. sites_test.cc compares the table with the source;
// and protocols_test.cc weakens each order, and expects that a model finds each order weaker than `weakest`.
#pragma once

#include <atomic>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace shardwire::models {

enum Site : int {
  kMutexUnlock,
  kMutexTryLock,
  kMutexLockSlowly,
  kRingReadReleased,
  kRingAwaitRoom,
  kRingSkippedFrame,
  kRingEmptyHeader,
  kRingPublishHeader,
  kRingPublishCount,
  kRingPublishFence,
  kRingReadWritten,
  kRingReadHeader,
  kRingRelease,
  kRingIsAwaited,
  kRingTakeAwaited,
  kBellIsArmed,
  kBellTakeArmed,
  kBellRing,
  kArmTicket,
  kArm,
  kDisarm,
  kTicket,
  kSleepCount,
  kSleepUncount,
  kRingSelf,
  kRingSelfSleepers,
  kProcessTicketWord,
  kProcessTicket,
  kProcessSleepCount,
  kProcessSleepWord,
  kProcessSleepUncount,
  kProcessRingWord,
  kProcessRing,
  kProcessRingSleepers,
  kMoveReadOwn,
  kMoveSetWord,
  kMovePublish,
  kMoveRing,
  kLateDue,
  kLateIsDue,
  kLateClear,
  kNumAnnounced,
  kAnnouncedWord,
  kAwaitAnnouncements,
  kFreeAnnounced,
  kFreeState,
  kRingProgress,
  kAnnounceBit,
  kAnnounceCount,
  kAnnounceAwaits,
  kRefuse,
  kRefusalOf,
  kOwnerLeftGlance,
  kOwnerLeft,
  kReadFence,
  kHasWithdrawn,
  kWithdraw,
  kWithdrawFence,
  kMarkLeft,
  kFullFence,
  kSignHere,
  kSignGone,
  kReadSign,
  kSeenByOthers,
  kSeen,
  kSetSeen,
  kArenaTake,
  kBlockSleepers,
  kBlockRing,
  kBlockSleepCount,
  kBlockTicket,
  kBlockSleepUncount,
  kDropped,
  kBarrierNumber,
  kArrive,
  kArrived,
  kEnterOrder,
  kOrderHolder,
  kLeaveOrder,
  kStepWord,
  kSetFreed,
  kServedDropped,
  kIsDropped,
  kWordFetch,
  kWordSet,
  kWordSwap,
  kWordCompareSwap,
  kWordAdd,
  kWordSeen,
  kWordCombine,
  kTicketRound,
  kTicketSet,
  kTicketRead,
  kHeapUsedRead,
  kHeapPurgesRead,
  kHeapDisown,
  kHeapUsedSmall,
  kHeapUsedLarge,
  kHeapInheritedAllocate,
  kHeapRelease,
  kHeapUsedLess,
  kHeapInheritedFree,
  kHeapPurged,
  kHeapInheritedOffset,
  kHeapForkCurrent,
  kHeapForkInherit,
  kHeapForkForget,
  kHeapCurrent,
  kHeapCurrentLocked,
  kHeapInherited,
  kHeapPublish,
  kHeapIfMade,
  kHeapOrInherited,
  kHeapInheritedOr,
  kHeapWhenFull,
  kHeapFree,
  kHeapFreeInherited,
  kHeapReported,
  kIsFreed,
  kQuietFence,
  kQuietAllFence,
  kStop,
  kIsStopped,
  kHasWork,
  kSetWork,
  kNumSites
};

struct SiteRow {
  Site site;
  const char* file;
  const char* function;  // as the source writes the name in the definition
  const char* call;      // the text before the parenthesis of the arguments
  std::memory_order order;
  // The weakest order with which every model holds, all other orders as in the table.
  std::memory_order weakest;
  const char* why;  // why the source has another order than the weakest; or why no model needs the operation
};

std::span<const SiteRow> siteRows();
// The orders weaker than the row's own: without sequential consistency, and relaxed.
std::vector<std::memory_order> weakerOrders(const SiteRow& row);

// The orders of all sites, at most one of them weakened.
class Orders {
 public:
  Orders() = default;
  Orders(Site weakened, std::memory_order to) : weakened_({weakened, to}) {}
  std::memory_order operator[](Site site) const;
  const std::set<Site>& used() const { return used_; }

 private:
  std::optional<std::pair<Site, std::memory_order>> weakened_;
  mutable std::set<Site> used_;
};

}  // namespace shardwire::models
