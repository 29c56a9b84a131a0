// Both sides of the fetches of an mpi connection, without MPI: messages are kept here, and end when a test says so.
#include "backend/transport/mpi/mpi_fetches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "backend/base/wire.h"
#include "tests/support/rounds.h"

namespace shardwire::testing {
namespace {

using namespace internal;

class NoPair final : public MpiPair {};

// Messages of one direction: `send` keeps the run, as MPI may, and reads the run only in deliver().
class KeptMessages final : public MpiOperations {
 public:
  Status send(MpiPair&, int, const MpiRun& run, const MpiCookie& cookie) override {
    sends.push_back({{run}, cookie});
    return Status::ok();
  }
  Status receive(MpiPair&, int, std::span<const MpiRun> runs, const MpiCookie& cookie) override {
    receives.push_back({{runs.begin(), runs.end()}, cookie});
    return Status::ok();
  }
  Status poll(std::vector<MpiDone>*) override { return Status::ok(); }
  void cancelReceives(const void*, std::uint16_t) override {}
  void forget(const void*) override {}

  struct Message {
    std::vector<MpiRun> runs;
    MpiCookie cookie;
    std::size_t size() const {
      std::size_t bytes = 0;
      std::for_each(runs.begin(), runs.end(), [&](const MpiRun& run) { bytes += run.size; });
      return bytes;
    }
  };
  std::deque<Message> sends;
  std::deque<Message> receives;
};

class NoReceiver final : public MpiReceiver {
 public:
  void onDone(const MpiDone&) override {}
};

// One rank's side, as the connection uses the side.
struct Side {
  KeptMessages* messages = new KeptMessages;
  MpiWire wire{nullptr, std::unique_ptr<MpiOperations>(messages)};
  NoPair pair;
  NoReceiver receiver;
  MpiFetches fetches{&wire, &pair, 7, &receiver};
};

struct TwoSides {
  // The oldest message arrives: MPI reads the owner's memory now.
  void deliver() {
    ASSERT_FALSE(owner.messages->sends.empty());
    ASSERT_FALSE(asker.messages->receives.empty());
    const KeptMessages::Message from = owner.messages->sends.front();
    const KeptMessages::Message to = asker.messages->receives.front();
    owner.messages->sends.pop_front();
    asker.messages->receives.pop_front();
    ASSERT_EQ(from.size(), to.size());
    std::vector<std::byte> bytes;
    for (const MpiRun& run : from.runs) {
      bytes.insert(bytes.end(), run.bytes, run.bytes + run.size);
    }
    const std::byte* next = bytes.data();
    for (const MpiRun& run : to.runs) {
      std::memcpy(run.bytes, next, run.size);
      next += run.size;
    }
    EXPECT_TRUE(asker.fetches.received({to.cookie, to.size(), false, {}}).isOk());
    EXPECT_TRUE(owner.fetches.sent({from.cookie, from.size(), false, {}}).isOk());
  }
  void ask(std::uint32_t space, std::span<const MemoryRun> runs, FetchCount* count) {
    std::vector<std::string> requests;
    ASSERT_TRUE(asker.fetches.fetch(space, runs, count, &requests).isOk());
    for (const std::string& request : requests) {
      ASSERT_TRUE(owner.fetches.serve(request).isOk());
    }
  }
  void exchange() {
    EXPECT_TRUE(asker.fetches.confirmedByPeer(
        static_cast<std::uint32_t>(owner.fetches.numConfirmed() % MpiHead::kConfirmedModulo)));
  }

  Side owner;
  Side asker;
};

MemoryRun runOf(std::vector<std::byte>& to, const std::vector<std::byte>& from, std::size_t offset, std::size_t bytes) {
  return {to.data() + offset, reinterpret_cast<std::uint64_t>(from.data()) + offset, bytes};
}

TEST(MpiFetches, ALongRunHasArrivedOnceTheOwnerConfirmsIt) {
  TwoSides two;
  std::vector<std::byte> from(3 * kMpiLongestMessage / 2, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount count;
  const MemoryRun all = runOf(to, from, 0, from.size());
  two.ask(address.space, {&all, 1}, &count);
  two.deliver();
  EXPECT_EQ(two.owner.fetches.numConfirmed(), 0U);  // of two messages
  two.deliver();
  EXPECT_EQ(to, from);
  EXPECT_EQ(count.pending, 1U);
  EXPECT_EQ(two.owner.fetches.numConfirmed(), 1U);
  two.exchange();
  EXPECT_EQ(count.pending, 0U);
}

// However much the owner's MPI can send, one poll of the asker receives no more than it has receives for.
TEST(MpiFetches, TheAskerPostsReceivesForAFewMessagesOnly) {
  TwoSides two;
  std::vector<std::byte> from(9 * kMpiLongestMessage, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount counts[2];
  const MemoryRun long1 = runOf(to, from, 0, 8 * kMpiLongestMessage);
  const MemoryRun long2 = runOf(to, from, 8 * kMpiLongestMessage, kMpiLongestMessage);
  two.ask(address.space, {&long1, 1}, &counts[0]);
  two.ask(address.space, {&long2, 1}, &counts[1]);
  for (int delivered = 0; delivered < 9; ++delivered) {
    EXPECT_EQ(two.asker.messages->receives.size(), static_cast<std::size_t>(std::min(2, 9 - delivered)));
    two.deliver();
  }
  two.exchange();
  EXPECT_EQ(counts[0].pending + counts[1].pending, 0U);
  EXPECT_EQ(to, from);
}

TEST(MpiFetches, NoReceiveIsPostedOnceTheAskerStops) {
  TwoSides two;
  std::vector<std::byte> from(4 * kMpiLongestMessage, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount count;
  const MemoryRun all = runOf(to, from, 0, from.size());
  two.ask(address.space, {&all, 1}, &count);
  EXPECT_FALSE(two.asker.fetches.stop());
  two.deliver();
  two.deliver();
  EXPECT_TRUE(two.asker.fetches.stop());
  EXPECT_EQ(two.asker.messages->receives.size(), 0U);
  EXPECT_EQ(count.pending, 1U);
}

TEST(MpiFetches, ShortRunsAreCopiedWhenTheyAreServedAndNeedNoConfirmation) {
  TwoSides two;
  std::vector<std::byte> from(kMpiLongRun, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount count;
  const MemoryRun one = runOf(to, from, 0, kMpiLongRun - 1);
  two.ask(address.space, {&one, 1}, &count);
  const MemoryRun some[] = {runOf(to, from, 0, 100), runOf(to, from, 1000, 200)};
  two.ask(address.space, some, &count);
  static_cast<void>(two.owner.fetches.stop());
  std::fill(from.begin(), from.end(), std::byte{2});
  two.deliver();
  two.deliver();
  EXPECT_EQ(count.pending, 0U);
  EXPECT_EQ(std::count(to.begin(), to.end(), std::byte{1}), static_cast<std::ptrdiff_t>(kMpiLongRun - 1));
}

TEST(MpiFetches, AMessageUnderWayWhenTheOwnerStopsEndsNoFetch) {
  TwoSides two;
  std::vector<std::byte> from(4 * kMpiLongRun, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount before;
  FetchCount after;
  const MemoryRun first = runOf(to, from, 0, kMpiLongRun);
  const MemoryRun second = runOf(to, from, kMpiLongRun, kMpiLongRun);
  two.ask(address.space, {&first, 1}, &before);
  two.ask(address.space, {&second, 1}, &after);
  two.deliver();
  EXPECT_FALSE(two.owner.fetches.stop());  // the second message is under way
  std::fill(from.begin(), from.end(), std::byte{2});
  two.deliver();
  EXPECT_TRUE(two.owner.fetches.stop());
  two.exchange();
  EXPECT_EQ(before.pending, 0U);
  EXPECT_EQ(after.pending, 1U);
  EXPECT_EQ(two.owner.fetches.numConfirmed(), 1U);
}

// Counts travel with messages, may overtake each other, and wrap around.
TEST(MpiFetches, OlderCountsAreNoNewsAndImpossibleOnesAreErrors) {
  TwoSides two;
  std::vector<std::byte> from(kMpiLongRun, std::byte{1});
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  const MemoryRun all = runOf(to, from, 0, from.size());
  for (std::uint32_t i = 1; i < 100; ++i) {
    FetchCount count;
    two.ask(address.space, {&all, 1}, &count);
    two.deliver();
    EXPECT_FALSE(two.asker.fetches.confirmedByPeer(i + 1)) << i;
    EXPECT_TRUE(two.asker.fetches.confirmedByPeer(i - 1));
    EXPECT_EQ(count.pending, 1U);
    EXPECT_TRUE(two.asker.fetches.confirmedByPeer(i));
    EXPECT_EQ(count.pending, 0U);
    EXPECT_TRUE(two.asker.fetches.confirmedByPeer(i / 2));
    EXPECT_FALSE(two.asker.fetches.confirmedByPeer(MpiHead::kConfirmedModulo - 1));
  }
}

// A request of 40 bytes may ask for very many messages.
TEST(MpiFetches, ARequestForTooManyRunsIsRefused) {
  Side owner;
  std::byte first{};
  const std::uint64_t bytes = 16 * kMpiLongestMessage;
  const RemoteAddress address = owner.fetches.expose(&first, bytes);
  ByteWriter request;
  request.u32(address.space);
  request.u32(1);  // regular
  request.u64(std::uint64_t{1} << 20);
  request.u64(address.value);
  request.u64(bytes);
  request.u64(0);
  const Status served = owner.fetches.serve(request.bytes());
  EXPECT_EQ(served.code(), StatusCode::kPeerFailed);
  EXPECT_NE(served.message().find("runs beside 0"), std::string::npos) << served.message();
  EXPECT_TRUE(owner.messages->sends.empty());
}

TEST(MpiFetches, AsManyRunsAreUnderWayAsAnOwnerServes) {
  TwoSides two;
  EXPECT_TRUE(two.asker.fetches.hasRoom(2 * MpiFetches::kMostAskedRuns));
  std::vector<std::byte> from(kMpiLongRun);
  std::vector<std::byte> to(from.size());
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  FetchCount count;
  const MemoryRun one = runOf(to, from, 0, 100);
  two.ask(address.space, {&one, 1}, &count);
  EXPECT_FALSE(two.asker.fetches.hasRoom(MpiFetches::kMostAskedRuns));
  EXPECT_TRUE(two.asker.fetches.hasRoom(MpiFetches::kMostAskedRuns - 1));
  two.deliver();
  EXPECT_TRUE(two.asker.fetches.hasRoom(MpiFetches::kMostAskedRuns));
}

TEST(MpiFetches, RandomRunsEndWhenTheirBytesAreThere) {
  std::minstd_rand random(11);
  TwoSides two;
  std::vector<std::byte> from(std::size_t{4} << 20);
  std::generate(from.begin(), from.end(), [&] { return static_cast<std::byte>(random()); });
  const RemoteAddress address = two.owner.fetches.expose(from.data(), from.size());
  for (int round = 0; round < rounds(50); ++round) {
    std::vector<std::byte> to(from.size());
    std::vector<std::byte> wanted(from.size());
    std::vector<FetchCount> counts(1 + random() % 8);
    std::size_t at = 0;
    for (FetchCount& count : counts) {
      std::vector<MemoryRun> runs;
      for (std::size_t i = 0; i < 1 + random() % 40; ++i) {
        const std::size_t bytes = 1 + (random() % 8 == 0 ? random() % 200000 : random() % 3000);
        if (at + bytes > from.size()) {
          break;
        }
        runs.push_back(runOf(to, from, at, bytes));
        std::memcpy(wanted.data() + at, from.data() + at, bytes);
        at += bytes + random() % 100;
      }
      if (!runs.empty()) {
        two.ask(address.space, runs, &count);
      }
    }
    while (!two.owner.messages->sends.empty()) {
      two.deliver();
      if (random() % 3 == 0) {
        two.exchange();
      }
    }
    two.exchange();
    EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](const FetchCount& count) { return count.pending == 0; }))
        << round;
    EXPECT_EQ(to, wanted) << round;
  }
}

}  // namespace
}  // namespace shardwire::testing
