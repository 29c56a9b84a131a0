// The protocols of symmetric memory: backend/symm, and the tickets of backend/c10d/torch_symm_memory.cc. First come
// sleep and wake-up on the words of a part, which most models use, then the models, then one function for each
// protocol.
#include "tests/models/models.h"

namespace shardwire::models {
namespace {

constexpr Order kRelaxed = Order::relaxed;

// A part's words: BlockWords.
struct PartPlaces {
  Location sleepers, bell, queue;
};
constexpr Location kPartPlaces = 3;

void wakeSleepers(Thread& t, const Orders& o, PartPlaces part) {
  if (t.load(part.sleepers, o[kBlockSleepers]) != 0) {
    t.fetchAdd(part.bell, 1, o[kBlockRing]);
    t.futexWakeAll(part.queue);
  }
}

// SymmetricBlock::waitFor() with sleep().
template <typename IsOver>
void waitFor(Thread& t, const Orders& o, PartPlaces mine, IsOver isOver) {
  while (!isOver()) {
    t.fetchAdd(mine.sleepers, 1, o[kBlockSleepCount]);
    const Value rings = t.load(mine.bell, o[kBlockTicket]);
    const bool isNowOver = isOver();
    if (!isNowOver) {
      t.futexWait(mine.bell, mine.queue, rings);
    }
    t.fetchAdd(mine.sleepers, ~Value{0}, o[kBlockSleepUncount]);
    if (isNowOver) {
      return;
    }
  }
}

PartPlaces partOf(std::size_t rank) {
  return {kPartPlaces * rank, kPartPlaces * rank + 1, kPartPlaces * rank + 2};
}

// applySized() with an operation that makes 0 to 1.
void setWord(Thread& t, const Orders& o, Location word, Site how) {
  switch (how) {
    case kWordSet:
      return t.store(word, 1, o[how]);
    case kWordSwap:
      t.exchange(word, 1, o[how]);
      return;
    case kWordCompareSwap:
      t.compareExchange(word, 0, 1, o[how]);
      return;
    case kWordAdd:
      t.fetchAdd(word, 1, o[how]);
      return;
    default:
      break;
  }
  const Value seen = t.load(word, o[kWordSeen]);
  t.awaitExchange(word, seen, seen + 1, o[kWordCombine]);
}

// Plain stores, then a word, then wake(); the owner sleeps until the word has changed.
Model signal(const Orders& o, Site how) {
  constexpr Location kWord = 3, kData = 4;
  return {5,
          {[=, &o](Thread& t) {
             t.writePlain(kData, 7);
             setWord(t, o, kWord, how);
             wakeSleepers(t, o, partOf(0));
           },
           [&o](Thread& t) {
             waitFor(t, o, partOf(0), [&] { return t.load(kWord, o[kWordFetch]) == 1; });
             t.require(t.readPlain(kData) == 7, "stores before a signal are not seen");
           }}};
}

// Two ranks each set a word and then load the other word.
Model twoSets(const Orders& o, Site how) {
  // The outcome of both loads: a third thread adds up what the two noted.
  constexpr Location kResults = 2;
  const auto side = [=, &o](Location mine, Location other) {
    return [=, &o](Thread& t) {
      setWord(t, o, mine, how);
      t.store(kResults + mine, 1 + t.load(other, o[kWordFetch]), Order::release);
    };
  };
  return {4, {side(0, 1), side(1, 0), [](Thread& t) {
                const auto isThere = [](Value value) { return value != 0; };
                const Value first = t.await(kResults, kRelaxed, isThere);
                t.require(first + t.await(kResults + 1, kRelaxed, isThere) > 2, "neither rank sees the other's word");
              }}};
}

// SymmetricBlock::quiet() and quietAll() between two plain stores of a rank, which race by design.
Model quiet(const Orders& o, Site fence) {
  return {2,
          {[=, &o](Thread& t) {
             t.store(0, 1, kRelaxed);
             t.fence(o[fence]);
             t.store(1, 1, kRelaxed);
           },
           [&o](Thread& t) {
             if (t.load(1, o[kWordFetch]) == 1) {
               t.require(t.load(0, kRelaxed) == 1, "a store behind quiet() is seen before a store in front");
             }
           }}};
}

// SymmetricBlock::barrier() of two ranks; each wrote into the other's part before.
Model barrierOf(const Orders& o) {
  constexpr Location kArrivedAt = 6, kData = 8;
  const auto rank = [=, &o](std::size_t me) {
    return [=, &o](Thread& t) {
      const std::size_t peer = 1 - me;
      t.writePlain(kData + peer, 7);
      t.store(kArrivedAt + peer, 1, o[kArrive]);
      wakeSleepers(t, o, partOf(peer));
      waitFor(t, o, partOf(me), [&] { return t.load(kArrivedAt + me, o[kArrived]) == 1; });
      t.require(t.readPlain(kData + me) == 7, "stores before a barrier are not seen behind the barrier");
    };
  };
  return {10, {rank(0), rank(1)}};
}

// TorchSymmetricMemory::meet(): tickets in two sets by turns, ordered by the barrier alone.
Model tickets(const Orders& o) {
  constexpr Location kArrivedAt = 0, kTickets = 2;  // by rank; by set and rank
  const auto rank = [=, &o](std::size_t me) {
    return [=, &o](Thread& t) {
      for (Value round = 1; round <= 3; ++round) {
        const Location set = kTickets + 2 * (round & 1);
        t.store(set + (1 - me), round, o[kTicketSet]);
        t.store(kArrivedAt + (1 - me), round, o[kArrive]);
        t.await(kArrivedAt + me, o[kArrived], [round](Value number) { return number >= round; });
        t.require(t.load(set + me, o[kTicketRead]) == round, "a ticket of another round");
      }
    };
  };
  return {6, {rank(0), rank(1)}};
}

// SymmetricBlock::enterOrder() and leaveOrder() of two ranks.
Model orderOf(const Orders& o) {
  constexpr Location kHolder = 6, kData = 7;
  const auto rank = [=, &o](std::size_t me) {
    return [=, &o](Thread& t) {
      waitFor(t, o, partOf(me), [&] { return t.compareExchange(kHolder, 0, me + 1, o[kEnterOrder]); });
      t.writePlain(kData, t.readPlain(kData) + 1);
      t.store(kHolder, 0, o[kLeaveOrder]);
      wakeSleepers(t, o, partOf(1 - me));
    };
  };
  return {8, {rank(0), rank(1)}};
}

// SymmetricBlock::stepWord() of a sender (0 to 1) and a receiver (1 to 0), with wake(). Each writes before a step, and
// reads behind a step what the other wrote before its latest step.
Model steps(const Orders& o, Value rounds) {
  constexpr Location kWord = 6, kSent = 7, kReplies = 10;
  const auto step = [=, &o](Thread& t, std::size_t me, Value from) {
    if (rounds > 1) {
      return t.awaitExchange(kWord, from, 1 - from, o[kStepWord]);
    }
    waitFor(t, o, partOf(me), [&] { return t.compareExchange(kWord, from, 1 - from, o[kStepWord]); });
    wakeSleepers(t, o, partOf(1 - me));
  };
  return {14,
          {[=](Thread& t) {
             for (Value round = 1; round <= rounds; ++round) {
               t.writePlain(kSent + round, 7);
               step(t, 0, 0);
               t.require(round == 1 || t.readPlain(kReplies + round - 1) == 7, "stores before a step are not seen");
             }
           },
           [=](Thread& t) {
             for (Value round = 1; round <= rounds; ++round) {
               t.writePlain(kReplies + round, 7);
               step(t, 1, 1);
               t.require(t.readPlain(kSent + round) == 7, "stores before a step are not seen");
             }
           }}};
}

// The destructor of SymmetricBlock in a holder, and isHeld() in the owner, who gives the memory out again.
Model dropped(const Orders& o, Site store) {
  return {2,
          {[=, &o](Thread& t) {
             t.writePlain(1, 1);
             t.store(0, 1, o[store]);
           },
           [&o](Thread& t) {
             if (t.load(0, o[kIsDropped]) != 0) {
               t.writePlain(1, 2);
             }
           }}};
}

}  // namespace

Protocol symmetricWords() {
  Protocol words{
      "words of symmetric memory",
      "`symm/word_ops`, `block_words`, `symmetric_block`",
      "stores before a signal are seen behind the wait; a sleeper is woken; of two ranks that each set a word "
      "and then load the other's, one sees the other's",
      {}};
  for (const Site how : {kWordSet, kWordSwap, kWordCompareSwap, kWordAdd, kWordCombine}) {
    words.models.emplace_back([how](const Orders& o) { return signal(o, how); });
    words.models.emplace_back([how](const Orders& o) { return twoSets(o, how); });
  }
  for (const Site fence : {kQuietFence, kQuietAllFence}) {
    words.models.emplace_back([fence](const Orders& o) { return quiet(o, fence); });
  }
  return words;
}

Protocol symmetricBarrier() {
  return {"barrier and tickets",
          "`symm/symmetric_block`, `c10d/torch_symm_memory`",
          "stores of each rank before its barrier are seen behind the barrier, tickets too; a sleeper is woken",
          {barrierOf, tickets}};
}

Protocol orderedSections() {
  return {"ordered sections",
          "`symm/symmetric_block`",
          "sections exclude each other, each sees the stores of the one before; a sleeper is woken",
          {orderOf}};
}

Protocol padWords() {
  return {"words of signal pads",
          "`symm/symmetric_block`",
          "stores before a step are seen behind the other rank's next step; a sleeper is woken",
          {[](const Orders& o) { return steps(o, 1); }, [](const Orders& o) { return steps(o, 3); }}};
}

Protocol releasedParts() {
  return {"released parts",
          "`symm/deferred_release`, `served_block`, `symmetric_block`",
          "a part is given out again behind the last store of each holder",
          {[](const Orders& o) { return dropped(o, kDropped); },
           [](const Orders& o) { return dropped(o, kServedDropped); }}};
}

std::vector<Protocol> allProtocols() {
  return {mutex(),           frameRing(),       rankBell(),     processBell(),    announcements(),
          inboxEnd(),        withdrawnMemory(), sharedHeap(),   symmetricWords(), symmetricBarrier(),
          orderedSections(), padWords(),        releasedParts()};
}

}  // namespace shardwire::models
