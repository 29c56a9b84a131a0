// One queue on its holder, without links. First the order in which putters and getters are served, then getters and
// putters that give up, die or throw, then entries that come back to their place. At last the ways in which a queue
// ends: closing, failing and revoking.
#include "backend/queues/held_queue.h"

#include <gtest/gtest.h>

#include <new>

namespace shardwire::internal {
namespace {

class HeldQueueTest : public ::testing::Test {
 protected:
  PuttingPtr putting(const void* source, const std::string& head, int missing = 0) {
    const auto made = std::make_shared<Putting>();
    made->source = source;
    made->missing = missing;
    made->entries = {std::make_shared<QueueEntry>(QueueEntry{head, {}, 0})};
    made->notify = [this, head](QueueOutcome outcome) { seen.push_back("put " + head + " " + textOf(outcome)); };
    return made;
  }
  QueueGetterPtr getter(const std::string& name, bool takes = true) {
    const auto made = std::make_shared<QueueGetter>();
    made->takes = takes;
    made->serve = [this, name](const QueueEntryPtr& entry, QueueOutcome why, const std::string& failure) {
      taken = entry != nullptr ? entry : taken;
      seen.push_back(name + " " + (entry != nullptr ? entry->head : textOf(why) + failure));
    };
    return made;
  }
  static std::string textOf(QueueOutcome outcome) {
    static const char* const kTexts[] = {"none", "ready", "nothing", "over", "failed "};
    return kTexts[static_cast<int>(outcome)];
  }
  std::vector<std::string> flushed() { return std::exchange(seen, {}); }
  using Lines = std::vector<std::string>;

  int one = 0, other = 0;  // sources
  QueueEntryPtr taken;
  Lines seen;
};

TEST_F(HeldQueueTest, APutterIsNotifiedBeforeAGetter) {
  HeldQueue queue("", 0, false, 0);
  queue.get(getter("g"), true);
  queue.put(putting(&one, "a"), true);
  EXPECT_EQ(flushed(), (Lines{"put a ready", "g a"}));
}

TEST_F(HeldQueueTest, PutsOfOneSourceKeepTheirOrderAndOthersPass) {
  HeldQueue queue("", 0, false, 0);
  const PuttingPtr late = putting(&one, "late", 1);
  queue.put(late, true);
  queue.put(putting(&one, "second"), true);
  queue.put(putting(&other, "other"), true);
  queue.get(getter("g"), true);
  EXPECT_EQ(flushed(), (Lines{"put other ready", "g other"}));
  late->missing = 0;
  queue.arrived(&one);
  EXPECT_EQ(flushed(), (Lines{"put late ready", "put second ready"}));
  queue.get(getter("g"), true);
  queue.get(getter("h"), true);
  EXPECT_EQ(flushed(), (Lines{"g late", "h second"}));
}

TEST_F(HeldQueueTest, ManyGettersAndManyPutsThatWaitNeedNoStack) {
  constexpr int kMany = 100'000;  // a nested call for each would need tens of MiB
  HeldQueue queue("", 1, false, 0);
  const PuttingPtr first = putting(&one, "first", 1);
  queue.put(first, true);
  for (int i = 0; i < kMany; ++i) {
    queue.get(getter("g"), true);
    queue.put(putting(&other, "p"), true);
  }
  EXPECT_EQ(flushed(), Lines{});
  first->missing = 0;
  queue.arrived(&one);
  const Lines all = flushed();
  ASSERT_EQ(all.size(), 2 * kMany + 1);  // the last put has no getter
  EXPECT_EQ((Lines{all.begin(), all.begin() + 4}), (Lines{"put first ready", "g first", "put p ready", "g p"}));
  EXPECT_EQ(all.back(), "put p ready");
}

TEST_F(HeldQueueTest, APutterThatDiesInTheMiddleHoldsNobodyBack) {
  HeldQueue queue("", 1, false, 0);
  const PuttingPtr dying = putting(&one, "dying", 1);
  queue.put(dying, true);
  queue.put(putting(&other, "waits"), true);  // for room
  queue.put(putting(&other, "refused"), false);
  EXPECT_EQ(flushed(), Lines{"put refused nothing"});
  queue.giveUp(dying);
  EXPECT_EQ(flushed(), Lines{"put waits ready"});
  EXPECT_EQ(queue.size(), 1U);
}

TEST_F(HeldQueueTest, AnEntryThatComesBackGoesToItsPlace) {
  HeldQueue queue("", 0, false, 0);
  for (const char* head : {"a", "b", "c"}) {
    queue.put(putting(&one, head), true);
  }
  queue.get(getter("g"), true);
  const QueueEntryPtr first = taken;
  queue.get(getter("g"), true);
  queue.giveBack({taken});
  queue.giveBack({first});
  flushed();
  for (int i = 0; i < 3; ++i) {
    queue.get(getter("h"), true);
  }
  EXPECT_EQ(flushed(), (Lines{"h a", "h b", "h c"}));
}

TEST_F(HeldQueueTest, AClosedQueueIsOverWhenNoEntryCanComeBack) {
  HeldQueue queue("", 0, false, 0);
  queue.put(putting(&one, "a"), true);
  queue.get(getter("g"), true);
  queue.lend();
  queue.close();
  queue.get(getter("watcher", false), true);
  queue.get(getter("now"), false);
  queue.get(getter("h"), true);
  EXPECT_EQ(flushed(), (Lines{"put a ready", "g a", "now nothing"}));
  queue.giveBack({taken});
  queue.lend();
  queue.settle(1);
  EXPECT_EQ(flushed(), Lines{"h a"});
  queue.get(getter("i"), true);
  EXPECT_EQ(flushed(), Lines{});
  queue.settle(1);
  EXPECT_EQ(flushed(), (Lines{"watcher over", "i over"}));
}

TEST_F(HeldQueueTest, AGetterThatGivesUpTakesNothing) {
  HeldQueue queue("", 0, false, 0);
  const QueueGetterPtr leaving = getter("leaving");
  queue.get(leaving, true);
  queue.get(getter("staying"), true);
  EXPECT_TRUE(queue.forget(leaving));
  EXPECT_FALSE(queue.forget(leaving));
  queue.put(putting(&one, "a"), true);
  EXPECT_EQ(flushed(), (Lines{"put a ready", "staying a"}));
  queue.get(getter("now"), false);
  EXPECT_EQ(flushed(), Lines{"now nothing"});
}

TEST_F(HeldQueueTest, AGetterThatThrowsEndsNoOther) {
  HeldQueue queue("", 0, false, 0);
  const auto throwing = std::make_shared<QueueGetter>();
  throwing->serve = [this](const QueueEntryPtr& entry, QueueOutcome, const std::string&) {
    taken = entry;
    throw std::bad_alloc();
  };
  queue.get(throwing, true);
  queue.get(getter("g"), true);
  EXPECT_THROW(queue.put(putting(&one, "a"), true), std::bad_alloc);
  EXPECT_EQ(flushed(), Lines{"put a ready"});
  queue.giveBack({taken});
  EXPECT_EQ(flushed(), Lines{"g a"});
  queue.put(putting(&one, "b"), true);
  queue.get(getter("h"), true);
  EXPECT_EQ(flushed(), (Lines{"put b ready", "h b"}));
}

TEST_F(HeldQueueTest, ClosingFailingAndRevoking) {
  HeldQueue queue("", 1, false, 0);
  queue.put(putting(&one, "a"), true);
  queue.put(putting(&one, "b"), true);
  queue.get(getter("watcher", false), true);
  EXPECT_EQ(flushed(), (Lines{"put a ready", "watcher ready"}));
  queue.close();
  queue.put(putting(&one, "c"), true);
  queue.get(getter("g"), true);
  queue.get(getter("g"), true);
  EXPECT_EQ(flushed(), (Lines{"put b over", "put c over", "g a", "g over"}));
  HeldQueue failing("", 0, false, 1);
  failing.get(getter("g"), true);
  failing.fail("rank 1 died");
  EXPECT_EQ(flushed(), Lines{"g failed rank 1 died"});
  failing.put(putting(&one, "a"), true);
  failing.revoke("revoked");
  failing.get(getter("g"), true);
  EXPECT_EQ(flushed(), (Lines{"put a ready", "g failed revoked"}));
}

}  // namespace
}  // namespace shardwire::internal
