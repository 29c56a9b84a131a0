// The protocols of backend/transport, backend/fabric and backend/memory. The functions in front of the protocols are
// the C++ functions of the same names, with the words that each touches as arguments; then follows one function for
// each protocol with the threads of each model.
#include "tests/models/models.h"

namespace shardwire::models {
namespace {

constexpr Order kRelaxed = Order::relaxed;

// ---- backend/transport/frame_ring.cc. A frame with its header is one cell of the ring.

constexpr Value kSkip = 1000;  // + the cells skipped; a frame has a smaller value, which is not 0

// Locations: the two counts, the frames, and for Publish::kHeader the headers.
struct RingPlaces {
  Value capacity, rewindFrom;  // in cells
  bool byHeader;
  static constexpr Location kWritten = 0, kReleased = 1, kFrames = 2;
  Location frame(Value cell) const { return kFrames + cell % capacity; }
  Location header(Value cell) const { return kFrames + capacity + cell % capacity; }
  Location numLocations() const { return kFrames + 2 * capacity; }
};

constexpr Value kFrameHeader = 1, kEmptyHeader = 0;

class RingWriter {
 public:
  RingWriter(Thread& thread, const Orders& orders, RingPlaces ring) : t_(thread), o_(orders), ring_(ring) {}

  // RingWriter::reserve() and commit(). Without room, waits for the reader.
  void send(Value frame) {
    const Value from = written_, position = from % ring_.capacity;
    const Value skip = canRewind(position) ? ring_.capacity - position : 0, needed = skip + 1;
    const Value room = ring_.capacity - (ring_.byHeader ? 1 : 0);
    if (room - (written_ - released_) < needed) {
      released_ = t_.await(RingPlaces::kReleased, o_[kRingReadReleased],
                           [enough = written_ + needed - room](Value released) { return released >= enough; });
    }
    t_.writePlain(ring_.frame(from + skip), frame);
    written_ += needed;
    publish(from, skip);
  }

 private:
  void publish(Value from, Value skip) {
    if (!ring_.byHeader) {
      if (skip > 0) {
        t_.writePlain(ring_.frame(from), kSkip + skip);
      }
      t_.store(RingPlaces::kWritten, written_, o_[kRingPublishCount]);
      t_.fence(o_[kRingPublishFence]);
      return;
    }
    if (skip > 0) {
      t_.store(ring_.header(from + skip), kFrameHeader, o_[kRingSkippedFrame]);
    }
    t_.store(ring_.header(written_), kEmptyHeader, o_[kRingEmptyHeader]);
    t_.store(ring_.header(from), skip > 0 ? kSkip + skip : kFrameHeader, o_[kRingPublishHeader]);
    t_.fence(o_[kRingPublishFence]);
  }

  bool canRewind(Value position) {
    if (ring_.rewindFrom == 0 || position < ring_.rewindFrom) {
      return false;
    }
    released_ = t_.load(RingPlaces::kReleased, o_[kRingReadReleased]);
    return released_ == written_;
  }

  Thread& t_;
  const Orders& o_;
  const RingPlaces ring_;
  Value written_ = 0, released_ = 0;
};

// RingReader::peek() and release().
class RingReader {
 public:
  RingReader(Thread& thread, const Orders& orders, RingPlaces ring) : t_(thread), o_(orders), ring_(ring) {}

  Value receive() {
    while (true) {
      const Value next = ring_.byHeader ? awaitHeader() : awaitCount();
      if (next < kSkip) {
        const Value frame = t_.readPlain(ring_.frame(released_));
        released_ += 1;
        t_.store(RingPlaces::kReleased, released_, o_[kRingRelease]);
        return frame;
      }
      released_ += next - kSkip;
    }
  }

 private:
  Value awaitHeader() {
    return t_.await(ring_.header(released_), o_[kRingReadHeader], [](Value now) { return now != kEmptyHeader; });
  }
  Value awaitCount() {
    if (written_ == released_) {
      written_ =
          t_.await(RingPlaces::kWritten, o_[kRingReadWritten], [old = released_](Value now) { return now != old; });
    }
    return t_.readPlain(ring_.frame(released_));
  }

  Thread& t_;
  const Orders& o_;
  const RingPlaces ring_;
  Value written_ = 0, released_ = 0;
};

Model ringOf(const Orders& o, Value numFrames, RingPlaces ring) {
  return {ring.numLocations(),
          {[=, &o](Thread& t) {
             RingWriter writer(t, o, ring);
             for (Value frame = 1; frame <= numFrames; ++frame) {
               writer.send(frame);
             }
           },
           [=, &o](Thread& t) {
             RingReader reader(t, o, ring);
             for (Value frame = 1; frame <= numFrames; ++frame) {
               t.require(reader.receive() == frame, "a frame arrives out of order or changed");
             }
           }}};
}

// ---- backend/fabric/rank_bell.h, rank_doorbell.cc

struct BellPlaces {
  Location bell, armed, queue;
};

void ringIfArmed(Thread& t, const Orders& o, BellPlaces at) {
  if (t.load(at.armed, o[kBellIsArmed]) == 0) {
    return;
  }
  if (t.exchange(at.armed, 0, o[kBellTakeArmed]) != 0) {
    t.fetchAdd(at.bell, 1, o[kBellRing]);
    t.futexWakeAll(at.queue);
  }
}

Value arm(Thread& t, const Orders& o, BellPlaces at) {
  const Value ticket = t.load(at.bell, o[kArmTicket]);
  t.change(
      at.armed, [](Value old) { return old | 1; }, o[kArm]);
  return ticket;
}

// Driving::drive() and sleepOnBell() until `poll` returns true.
template <typename Poll>
void driveUntil(Thread& t, const Orders& o, BellPlaces at, Poll poll) {
  t.store(at.armed, 0, o[kDisarm]);
  while (!poll()) {
    const Value ticket = arm(t, o, at);
    if (poll()) {
      return;
    }
    t.futexWait(at.bell, at.queue, ticket);
  }
}

// Peers commit a frame each, and the reader sleeps. `publish` and `look`: the sites of the ring.
Model bellOfReader(const Orders& o, std::size_t numPeers, Site publish = kRingPublishHeader,
                   Site look = kRingReadHeader) {
  const BellPlaces bell{0, 1, 2};
  Model model{3 + 2 * numPeers, {}};
  model.threads.push_back([=, &o](Thread& t) {
    for (Location ring = 3; ring < 3 + 2 * numPeers; ring += 2) {
      driveUntil(t, o, bell, [&] { return t.load(ring, o[look]) != 0; });
      t.require(t.readPlain(ring + 1) == 7, "a frame arrives changed");
    }
  });
  for (Location ring = 3; ring < 3 + 2 * numPeers; ring += 2) {
    model.threads.push_back([=, &o](Thread& t) {
      t.writePlain(ring + 1, 7);
      t.store(ring, 1, o[publish]);
      t.fence(o[kRingPublishFence]);
      ringIfArmed(t, o, bell);
    });
  }
  return model;
}

// A writer without room sleeps until the reader has released `needed` frames, of two. The sites of
// RingWriter::findRoom() and RingReader::release().
Model bellOfWriter(const Orders& o, Value needed) {
  const BellPlaces bell{0, 1, 2};
  constexpr Location kReleased = 3, kAwaitsRoom = 4, kCells = 5;
  return {
      7,
      {[=, &o](Thread& t) {
         const auto hasRoom = [&] { return t.load(kReleased, o[kRingReadReleased]) >= needed; };
         driveUntil(t, o, bell, [&] {
           if (hasRoom()) {
             return true;
           }
           t.store(kAwaitsRoom, 1, o[kRingAwaitRoom]);
           return hasRoom();
         });
         t.writePlain(kCells + needed - 1, 1);
       },
       [=, &o](Thread& t) {
         for (Value frame = 0; frame < 2; ++frame) {
           t.readPlain(kCells + frame);
           t.store(kReleased, frame + 1, o[kRingRelease]);
           if (t.load(kAwaitsRoom, o[kRingIsAwaited]) != 0 && t.exchange(kAwaitsRoom, 0, o[kRingTakeAwaited]) != 0) {
             ringIfArmed(t, o, bell);
           }
         }
       }}};
}

// RankDoorbell::ticket(), sleep() and ringSelf(), between threads of a rank; the change itself may be relaxed.
Model ringSelf(const Orders& o) {
  constexpr Location kBell = 0, kQueue = 1, kNumSleeping = 2, kChange = 3;
  return {4,
          {[&o](Thread& t) {
             while (true) {
               const Value ticket = t.load(kBell, o[kTicket]);
               if (t.load(kChange, kRelaxed) != 0) {
                 return;
               }
               t.fetchAdd(kNumSleeping, 1, o[kSleepCount]);
               t.futexWait(kBell, kQueue, ticket);
               t.fetchAdd(kNumSleeping, ~Value{0}, o[kSleepUncount]);
             }
           },
           [&o](Thread& t) {
             t.store(kChange, 1, kRelaxed);
             t.fetchAdd(kBell, 1, o[kRingSelf]);
             if (t.load(kNumSleeping, o[kRingSelfSleepers]) != 0) {
               t.futexWakeAll(kQueue);
             }
           }}};
}

// ---- backend/fabric/process_bell.cc, with the work of Driving::wakeProgress(). The pointer word_ holds 0 (own_) or 1
// (the word that other processes ring).

constexpr Location kOwn = 0, kFar = 1, kWord = 2, kNumSleeping = 3, kQueues = 4, kWork = 6;

// `set` and `look`: the sites of the work for which the bell rings.
Model processBellOf(const Orders& o, Site set, Site look, bool moves) {
  Model model{7,
              {[=, &o](Thread& t) {
                 while (true) {
                   const Value ticket = t.load(t.load(kWord, o[kProcessTicketWord]), o[kProcessTicket]);
                   if (t.load(kWork, o[look]) != 0) {
                     return;
                   }
                   t.fetchAdd(kNumSleeping, 1, o[kProcessSleepCount]);
                   const Location word = t.load(kWord, o[kProcessSleepWord]);
                   t.futexWait(word, kQueues + word, ticket);
                   t.fetchAdd(kNumSleeping, ~Value{0}, o[kProcessSleepUncount]);
                 }
               },
               [=, &o](Thread& t) {
                 t.store(kWork, 1, o[set]);
                 Value rung = 2;  // no word
                 for (Value word = t.load(kWord, o[kProcessRingWord]); word != rung;
                      word = t.load(kWord, o[kProcessRingWord])) {
                   t.fetchAdd(word, 1, o[kProcessRing]);
                   if (t.load(kNumSleeping, o[kProcessRingSleepers]) != 0) {
                     t.futexWakeAll(kQueues + word);
                   }
                   rung = word;
                 }
               }}};
  if (moves) {
    model.threads.push_back([&o](Thread& t) {
      t.store(kFar, t.load(kOwn, o[kMoveReadOwn]) + 100, o[kMoveSetWord]);
      t.store(kWord, kFar, o[kMovePublish]);
      t.fetchAdd(kOwn, 1, o[kMoveRing]);
      t.futexWakeAll(kQueues + kOwn);
    });
  }
  return model;
}

// ---- backend/transport/shm: announcements (inbox, shm_connection, shm_late_links, late_wakeup)

constexpr Value kHere = 1, kGone = 2;

struct InboxPlaces {
  Location bits = 0, count = 1, awaits = 2, bell = 3, queue = 4, peers = 5;
  Location state(std::size_t peer) const { return peers + 2 * peer; }
  Location sign(std::size_t peer) const { return peers + 2 * peer + 1; }
};

// The constructor of ShmConnection, and Inbox::announce().
void announce(Thread& t, const Orders& o, std::size_t peer) {
  const InboxPlaces at;
  t.writePlain(at.sign(peer), 7);
  t.store(at.state(peer), kHere, o[kSignHere]);
  t.change(
      at.bits, [peer](Value old) { return old | Value{1} << peer; }, o[kAnnounceBit]);
  t.fetchAdd(at.count, 1, o[kAnnounceCount]);
  if (t.load(at.awaits, o[kAnnounceAwaits]) != 0) {
    t.fetchAdd(at.bell, 1, o[kRingProgress]);
    t.futexWakeAll(at.queue);
  }
}

// ShmLateLinks::hasNews() and noticeAnnounced() on the progress thread.
Model announcementsOf(const Orders& o, std::size_t numPeers) {
  Model model{5 + 2 * numPeers, {}};
  model.threads.push_back([=, &o](Thread& t) {
    const InboxPlaces at;
    t.store(at.awaits, 1, o[kAwaitAnnouncements]);
    Value numSeen = 0, seen = 0;
    while (seen + 1 != Value{1} << numPeers) {
      const Value ticket = t.load(at.bell, o[kProcessTicket]);
      const Value count = t.load(at.count, o[kNumAnnounced]);
      if (count == numSeen) {
        t.futexWait(at.bell, at.queue, ticket);
        continue;
      }
      numSeen = count;
      const Value fresh = t.load(at.bits, o[kAnnouncedWord]) & ~seen;
      seen |= fresh;
      for (std::size_t peer = 0; peer < numPeers; ++peer) {
        if ((fresh >> peer & 1) != 0) {
          // ShmConnection::readAnnouncement()
          t.require(t.load(at.state(peer), o[kReadSign]) != 0, "an announced rank has no sign");
          t.require(t.readPlain(at.sign(peer)) == 7, "an announced rank has half a sign");
        }
      }
    }
  });
  for (std::size_t peer = 0; peer < numPeers; ++peer) {
    model.threads.push_back([=, &o](Thread& t) { announce(t, o, peer); });
  }
  return model;
}

// A sign is read as soon as its state is there, without the bit.
Model signBeforeBit(const Orders& o) {
  return {2,
          {[&o](Thread& t) {
             t.writePlain(1, 7);
             t.store(0, kHere, o[kSignHere]);
           },
           [&o](Thread& t) {
             if (t.load(0, o[kReadSign]) != 0) {
               t.readPlain(1);
             }
           }}};
}

// LateWakeup: the fabric's thread settles two requests; the group's thread takes both. The outcomes have a lock.
Model lateWakeup(const Orders& o) {
  constexpr Location kDue = 0, kLock = 1, kOutcome = 2;
  const BellPlaces bell{3, 4, 5};
  const auto locked = [](Thread& t, auto action) {
    t.awaitExchange(kLock, 0, 1, Order::acquire);
    action();
    t.store(kLock, 0, Order::release);
  };
  return {6,
          {[=, &o](Thread& t) {
             Value outcome = 0;
             driveUntil(t, o, bell, [&] {
               if (t.load(kDue, o[kLateIsDue]) != 0) {
                 t.store(kDue, 0, o[kLateClear]);
                 locked(t, [&] { outcome = t.readPlain(kOutcome); });
               }
               return outcome == 2;
             });
           },
           [=, &o](Thread& t) {
             for (Value i = 1; i <= 2; ++i) {
               locked(t, [&] { t.writePlain(kOutcome, i); });
               t.store(kDue, 1, o[kLateDue]);
               ringIfArmed(t, o, bell);
             }
           }}};
}

// ---- backend/transport/shm/inbox.cc: the end of an inbox

// Inbox::leaveMemory(): the memory is given back only behind the last write of an announced peer.
Model leaveMemory(const Orders& o) {
  constexpr Location kBits = 0, kState = 1, kMemory = 2;
  return {3,
          {[&o](Thread& t) {
             t.store(kState, kHere, o[kSignHere]);
             t.change(
                 kBits, [](Value old) { return old | 1; }, o[kAnnounceBit]);
             t.writePlain(kMemory, 1);
             t.store(kState, kGone, o[kSignGone]);
           },
           [&o](Thread& t) {
             if (t.load(kBits, o[kFreeAnnounced]) != 0 && t.load(kState, o[kFreeState]) != kHere) {
               t.writePlain(kMemory, 2);
             }
           }}};
}

// Inbox::leaveWord() and markLeft(); lastWord() and the frames committed before.
Model lastWord(const Orders& o) {
  constexpr Location kState = 0, kWordCode = 1, kText = 2;
  return {3,
          {[&o](Thread& t) {
             t.writePlain(kText, 7);
             t.writePlain(kWordCode, 1);
             t.store(kState, 1, o[kMarkLeft]);
           },
           [&o](Thread& t) {
             if (t.load(kState, o[kOwnerLeftGlance]) == 1 && t.load(kState, o[kOwnerLeft]) == 1) {
               t.require(t.readPlain(kWordCode) == 1 && t.readPlain(kText) == 7, "the reason of a rank is lost");
             }
           }}};
}

// Inbox::refuse() and refusalOf().
Model refusal(const Orders& o) {
  return {2,
          {[&o](Thread& t) {
             t.writePlain(1, 7);
             t.store(0, 1, o[kRefuse]);
           },
           [&o](Thread& t) {
             if (t.load(0, o[kRefusalOf]) != 0) {
               t.readPlain(1);
             }
           }}};
}

// Inbox::markWithdrawn(), then stores of the owner's caller, who has the tensor back; the reader copies, then calls
// ownerWithdrew(). The copies race with these stores by design, so they are relaxed here and not plain.
Model withdrawn(const Orders& o) {
  constexpr Location kWithdrawn = 0, kTensor = 1;
  return {3,
          {[&o](Thread& t) {
             t.store(kWithdrawn, 1, o[kWithdraw]);
             t.fence(o[kWithdrawFence]);
             t.store(kTensor, 1, kRelaxed);
             t.store(kTensor + 1, 1, kRelaxed);
           },
           [&o](Thread& t) {
             const Value copied = t.load(kTensor + 1, kRelaxed) + t.load(kTensor, kRelaxed);
             t.fence(o[kReadFence]);
             t.require(t.load(kWithdrawn, o[kHasWithdrawn]) != 0 || copied == 0,
                       "a copy of memory that was given back counts");
           }}};
}

// ---- backend/memory/shared_heap.cc

// SharedHeap::instance() twice, and the readers of `current`.
Model heapInstance(const Orders& o, Site reader) {
  constexpr Location kCurrent = 0, kLock = 1, kHeap = 2;
  const auto instance = [&o](Thread& t) {
    if (t.load(kCurrent, o[kHeapCurrent]) == 0) {
      t.awaitExchange(kLock, 0, 1, Order::acquire);
      if (t.load(kCurrent, o[kHeapCurrentLocked]) == 0) {
        t.writePlain(kHeap, 7);
        t.store(kCurrent, 1, o[kHeapPublish]);
      }
      t.store(kLock, 0, Order::release);
    }
    t.require(t.readPlain(kHeap) == 7, "the heap is used before it is made");
  };
  return {3, {instance, instance, [=, &o](Thread& t) {
                if (t.load(kCurrent, o[reader]) != 0) {
                  t.require(t.readPlain(kHeap) == 7, "the heap is used before it is made");
                }
              }}};
}

// MemfdHeap::purge(), and RegistrationCache::pin() on another thread: an entry with the current count has the pages of
// behind the hole. The page is the kernel's.
Model heapPurges(const Orders& o) {
  constexpr Location kPage = 0, kNumPurges = 1;
  return {2,
          {[&o](Thread& t) {
             t.store(kPage, 1, kRelaxed);
             t.fetchAdd(kNumPurges, 1, o[kHeapPurged]);
           },
           [&o](Thread& t) {
             const Value purges = t.load(kNumPurges, o[kHeapPurgesRead]);
             t.require(t.load(kPage, kRelaxed) >= purges, "a registration with the current count has old pages");
           }}};
}

}  // namespace

Protocol frameRing() {
  return {"frame ring",
          "`transport/frame_ring`",
          "each frame arrives once, in order and whole, also where the writer rewinds; no cell is written while the "
          "reader may still read",
          {[](const Orders& o) {
             return ringOf(o, 4, {2, 0, false});
           },
           [](const Orders& o) {
             return ringOf(o, 5, {4, 2, false});
           },
           [](const Orders& o) {
             return ringOf(o, 4, {3, 0, true});
           },
           [](const Orders& o) {
             return ringOf(o, 5, {4, 2, true});
           }}};
}

Protocol rankBell() {
  return {
      "rank's bell",
      "`fabric/rank_bell`, `rank_doorbell`",
      "a reader asleep is woken by each peer's frame, a writer without room by the release, a thread of the rank by "
      "`ringSelf`",
      {[](const Orders& o) { return bellOfReader(o, 1); },
       [](const Orders& o) { return bellOfReader(o, 1, kRingPublishCount, kRingReadWritten); },
       [](const Orders& o) { return bellOfReader(o, 2); }, [](const Orders& o) { return bellOfWriter(o, 1); },
       [](const Orders& o) { return bellOfWriter(o, 2); }, ringSelf}};
}

Protocol processBell() {
  return {"process's bell",
          "`fabric/process_bell`",
          "a ring is not lost, also while the bell moves to the shared page",
          {[](const Orders& o) { return processBellOf(o, kSetWork, kHasWork, false); },
           [](const Orders& o) { return processBellOf(o, kSetWork, kHasWork, true); },
           [](const Orders& o) { return processBellOf(o, kStop, kIsStopped, true); }}};
}

Protocol announcements() {
  return {"announcements and late links",
          "`transport/shm/inbox`, `shm_connection`, `shm_late_links`, `fabric/late_wakeup`",
          "an announced rank has a whole sign; the owner asleep is woken by each announcement and each new link",
          {[](const Orders& o) { return announcementsOf(o, 1); }, [](const Orders& o) { return announcementsOf(o, 2); },
           signBeforeBit, lateWakeup}};
}

Protocol inboxEnd() {
  return {"end of an inbox",
          "`transport/shm/inbox`, `shm_connection`",
          "memory is given back behind the last write of each announced peer; a reason or a refusal that is seen is "
          "whole, and the reason of a rank that left is not missed",
          {leaveMemory, lastWord, refusal}};
}

Protocol withdrawnMemory() {
  return {"withdrawn memory",
          "`transport/shm/inbox`, `base/fence`",
          "a copy out of a peer's tensor counts only if the copy ended before the peer's caller had the tensor back",
          {withdrawn}};
}

Protocol sharedHeap() {
  return {"shared heap",
          "`memory/shared_heap`",
          "the heap is made once and before any use; a registration that counts as current has no purged pages",
          {[](const Orders& o) { return heapInstance(o, kHeapIfMade); },
           [](const Orders& o) { return heapInstance(o, kHeapOrInherited); },
           [](const Orders& o) { return heapInstance(o, kHeapFree); }, heapPurges}};
}

}  // namespace shardwire::models
