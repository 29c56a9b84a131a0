// The explorer itself, on the classical litmus tests: exactly the outcomes that C++20 allows, and their number where
// the number is well known. The names are the usual ones: SB, MP, LB, IRIW, 2+2W, CoRR, WRC, R. Then come atomic
// changes, the reports of errors, and the futex.
#include "tests/models/explorer.h"

#include <gtest/gtest.h>

namespace shardwire::models {
namespace {

constexpr Location kX = 0, kY = 1, kDoneX = 2, kDoneY = 3;
constexpr Order kRelaxed = Order::relaxed, kAcquire = Order::acquire, kRelease = Order::release,
                kSeqCst = Order::seq_cst;

Explored run(std::vector<std::function<void(Thread&)>> threads) {
  return explore({.numLocations = 4, .threads = std::move(threads)});
}
bool allows(const Explored& all, const char* outcome) {
  EXPECT_EQ(all.violation, "");
  return all.outcomes.contains(outcome);
}

// SB: each thread stores one word and loads the other word.
Explored storeBuffering(Order store, Order load, bool hasFences = false) {
  const auto side = [=](Location mine, Location other) {
    return [=](Thread& t) {
      t.store(mine, 1, store);
      if (hasFences) {
        t.fence(kSeqCst);
      }
      t.note(t.load(other, load));
    };
  };
  return run({side(kX, kY), side(kY, kX)});
}

TEST(Explorer, StoreBufferingNeedsSequentialConsistency) {
  EXPECT_TRUE(allows(storeBuffering(kRelaxed, kRelaxed), "0 | 0"));
  EXPECT_EQ(storeBuffering(kRelease, kAcquire).executions, 4U);
  EXPECT_FALSE(allows(storeBuffering(kSeqCst, kSeqCst), "0 | 0"));
  EXPECT_EQ(storeBuffering(kSeqCst, kSeqCst).executions, 3U);
  EXPECT_FALSE(allows(storeBuffering(kRelaxed, kRelaxed, true), "0 | 0"));
  EXPECT_TRUE(allows(storeBuffering(kSeqCst, kAcquire), "0 | 0"));
  EXPECT_TRUE(allows(storeBuffering(kRelease, kSeqCst), "0 | 0"));
}

Explored messagePassing(Order store, Order load, bool isPlain = false) {
  return run({[=](Thread& t) {
                isPlain ? t.writePlain(kX, 1) : t.store(kX, 1, kRelaxed);
                t.store(kY, 1, store);
              },
              [=](Thread& t) {
                const Value seen = t.load(kY, load);
                t.note(seen);
                if (seen == 1) {
                  t.note(isPlain ? t.readPlain(kX) : t.load(kX, kRelaxed));
                }
              }});
}

TEST(Explorer, MessagePassingNeedsReleaseAndAcquire) {
  EXPECT_TRUE(allows(messagePassing(kRelaxed, kRelaxed), "1 0"));
  EXPECT_TRUE(allows(messagePassing(kRelease, kRelaxed), "1 0"));
  EXPECT_TRUE(allows(messagePassing(kRelaxed, kAcquire), "1 0"));
  EXPECT_FALSE(allows(messagePassing(kRelease, kAcquire), "1 0"));
  EXPECT_TRUE(allows(messagePassing(kRelease, kAcquire), "1 1"));
  EXPECT_EQ(messagePassing(kRelease, kAcquire, true).violation, "");
  EXPECT_EQ(messagePassing(kRelaxed, kAcquire, true).violation, "a data race");
}

TEST(Explorer, FencesPassMessagesToo) {
  const auto passing = [](Order first, Order second) {
    return run({[=](Thread& t) {
                  t.store(kX, 1, kRelaxed);
                  t.fence(first);
                  t.store(kY, 1, kRelaxed);
                },
                [=](Thread& t) {
                  t.note(t.load(kY, kRelaxed));
                  t.fence(second);
                  t.note(t.load(kX, kRelaxed));
                }});
  };
  EXPECT_FALSE(allows(passing(kRelease, kAcquire), "1 0"));
  EXPECT_TRUE(allows(passing(kAcquire, kAcquire), "1 0"));
  EXPECT_TRUE(allows(passing(kRelease, kRelease), "1 0"));
}

// LB: C++ allows both loads to read 1 if all is relaxed. RC11 does not, so the explorer misses errors of this kind.
TEST(Explorer, LoadBufferingIsOutsideOfTheModel) {
  const auto side = [](Location from, Location to) {
    return [=](Thread& t) {
      t.note(t.load(from, kRelaxed));
      t.store(to, 1, kRelaxed);
    };
  };
  const Explored all = run({side(kX, kY), side(kY, kX)});
  EXPECT_FALSE(allows(all, "1 | 1"));
  EXPECT_EQ(all.executions, 3U);
}

// Independent reads of independent writes: do two readers agree about which store came first?
Explored independentReads(Order store, Order load, bool hasFences = false) {
  const auto writer = [=](Location at) { return [=](Thread& t) { t.store(at, 1, store); }; };
  const auto reader = [=](Location first, Location second) {
    return [=](Thread& t) {
      t.note(t.load(first, load));
      if (hasFences) {
        t.fence(kSeqCst);
      }
      t.note(t.load(second, load));
    };
  };
  return run({writer(kX), writer(kY), reader(kX, kY), reader(kY, kX)});
}

TEST(Explorer, IndependentReadsNeedSequentialConsistency) {
  EXPECT_TRUE(allows(independentReads(kRelease, kAcquire), "1 0 | 1 0"));
  EXPECT_EQ(independentReads(kRelease, kAcquire).executions, 16U);
  EXPECT_FALSE(allows(independentReads(kSeqCst, kSeqCst), "1 0 | 1 0"));
  EXPECT_EQ(independentReads(kSeqCst, kSeqCst).executions, 15U);
  EXPECT_FALSE(allows(independentReads(kRelaxed, kRelaxed, true), "1 0 | 1 0"));
}

// 2+2W: may both words end with the value of the store that came first in its thread?
Explored twoPlusTwoWrites(Order store) {
  const auto writer = [=](Location first, Location second, Location done) {
    return [=](Thread& t) {
      t.store(first, 1, store);
      t.store(second, 2, store);
      t.store(done, 1, kRelease);
    };
  };
  return run({writer(kX, kY, kDoneX), writer(kY, kX, kDoneY), [](Thread& t) {
                const auto isDone = [](Value value) { return value == 1; };
                t.await(kDoneX, kAcquire, isDone);
                t.await(kDoneY, kAcquire, isDone);
                t.note(t.load(kX, kRelaxed));
                t.note(t.load(kY, kRelaxed));
              }});
}

TEST(Explorer, StoresOfTwoThreadsHaveOneOrderOnlyIfSequentiallyConsistent) {
  EXPECT_TRUE(allows(twoPlusTwoWrites(kRelaxed), "1 1"));
  EXPECT_TRUE(allows(twoPlusTwoWrites(kRelease), "1 1"));
  EXPECT_FALSE(allows(twoPlusTwoWrites(kSeqCst), "1 1"));
  EXPECT_TRUE(allows(twoPlusTwoWrites(kSeqCst), "2 2"));
}

TEST(Explorer, LoadsOfOneLocationNeverGoBack) {
  const Explored all = run({[](Thread& t) {
                              t.store(kX, 1, kRelaxed);
                              t.store(kX, 2, kRelaxed);
                            },
                            [](Thread& t) {
                              t.note(t.load(kX, kRelaxed));
                              t.note(t.load(kX, kRelaxed));
                            }});
  EXPECT_EQ(all.outcomes, (std::set<std::string>{"0 0", "0 1", "0 2", "1 1", "1 2", "2 2"}));
}

// WRC: a store seen by a thread before the thread's own store is visible after a load of the latter.
TEST(Explorer, CausalityNeedsReleaseAndAcquireOnTheWholeWay) {
  const auto causality = [](Order middleLoad, Order middleStore) {
    return run({[](Thread& t) { t.store(kX, 1, kRelease); },
                [=](Thread& t) {
                  t.note(t.load(kX, middleLoad));
                  t.store(kY, 1, middleStore);
                },
                [](Thread& t) {
                  t.note(t.load(kY, kAcquire));
                  t.note(t.load(kX, kRelaxed));
                }});
  };
  EXPECT_FALSE(allows(causality(kAcquire, kRelease), "1 | 1 0"));
  EXPECT_TRUE(allows(causality(kAcquire, kRelaxed), "1 | 1 0"));
  // The middle load itself happens before the last load, and loads of one location never go back.
  EXPECT_FALSE(allows(causality(kRelaxed, kRelease), "1 | 1 0"));
}

// R: may a store come last, and a load of the same thread behind the store miss what the other thread stored first?
TEST(Explorer, ALoadBehindAnOverwritingStoreNeedsSequentialConsistency) {
  const auto r = [](Order store, Order load) {
    return run({[=](Thread& t) {
                  t.store(kX, 1, store);
                  t.store(kY, 1, store);
                  t.store(kDoneX, 1, kRelease);
                },
                [=](Thread& t) {
                  t.store(kY, 2, store);
                  t.note(t.load(kX, load));
                  t.await(kDoneX, kAcquire, [](Value value) { return value == 1; });
                  t.note(t.load(kY, kRelaxed));
                }});
  };
  EXPECT_TRUE(allows(r(kRelease, kAcquire), "0 2"));
  EXPECT_TRUE(allows(r(kSeqCst, kAcquire), "0 2"));
  EXPECT_FALSE(allows(r(kSeqCst, kSeqCst), "0 2"));
  EXPECT_TRUE(allows(r(kSeqCst, kSeqCst), "0 1"));
}

TEST(Explorer, ChangesAreAtomicAndGoOnWithARelease) {
  const auto add = [](Thread& t) { t.note(t.fetchAdd(kX, 1, kRelaxed)); };
  EXPECT_EQ(run({add, add}).outcomes, (std::set<std::string>{"0 | 1", "1 | 0"}));
  const auto throughAnother = [](bool isChange) {
    return run({[](Thread& t) {
                  t.store(kX, 1, kRelaxed);
                  t.store(kY, 1, kRelease);
                },
                [=](Thread& t) {
                  t.await(kY, kRelaxed, [](Value value) { return value == 1; });
                  isChange ? static_cast<void>(t.fetchAdd(kY, 1, kRelaxed)) : t.store(kY, 2, kRelaxed);
                },
                [](Thread& t) {
                  t.await(kY, kAcquire, [](Value value) { return value == 2; });
                  t.note(t.load(kX, kRelaxed));
                }});
  };
  EXPECT_FALSE(allows(throughAnother(true), "0"));
  EXPECT_TRUE(allows(throughAnother(false), "0"));
}

TEST(Explorer, ReportsAWaitWithoutEndAndABrokenInvariant) {
  EXPECT_EQ(run({[](Thread& t) { t.await(kX, kRelaxed, [](Value value) { return value == 1; }); }}).violation,
            "a thread waits for ever");
  const auto take = [](Thread& t) { t.require(t.compareExchange(kX, 0, 1, kSeqCst), "both took the word"); };
  EXPECT_EQ(run({take, take}).violation, "both took the word");
}

// The futex: a sleeper queued before the wake-up is woken, another sleeper sees the word.
TEST(Explorer, AFutexLosesNoWakeUp) {
  const auto sleepAndWake = [](bool wakes) {
    return run({[](Thread& t) { t.futexWait(kX, kY, 0); },
                [=](Thread& t) {
                  t.store(kX, 1, kRelaxed);
                  if (wakes) {
                    t.futexWakeAll(kY);
                  }
                }});
  };
  EXPECT_EQ(sleepAndWake(true).violation, "");
  EXPECT_EQ(sleepAndWake(false).violation, "a thread waits for ever");
}

}  // namespace
}  // namespace shardwire::models
