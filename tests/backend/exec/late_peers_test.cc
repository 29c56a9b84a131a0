// A rank waits for one peer of a group with unjoined ranks: the rank has no question to the unjoined ranks. With 1,024
// ranks in one process, checks of all ranks by each rank, a hundred times a second, took two cores whole.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/backend/exec/fake_engine.h"

namespace shardwire::internal {
namespace {

class WatchedConnection final : public Connection {
 public:
  WatchedConnection(Rank peer, std::atomic<int>* looks) : none_(peer, "fake", Options{}), looks_(looks) {}

  Rank peer() const override { return none_.peer(); }
  const char* transportName() const override { return "fake"; }
  bool isJoined() const override { return false; }
  std::span<std::byte> reserve(Lane, std::size_t, std::size_t) override { return look<std::span<std::byte>>(); }
  void commit(Lane, std::size_t) override {}
  std::size_t maxFrameBytes(Lane) const override { return 1024; }
  std::span<const std::byte> peek(Lane) override { return look<std::span<const std::byte>>(); }
  void release(Lane) override {}
  Reach expose(const void*, std::size_t, RemoteAddress*) override { return Reach::kNone; }
  ReadLimits readLimits() const override { return {}; }
  Status read(std::span<const MemoryRun> runs) override { return none_.read(runs); }
  Status health() override { return look<Status>(); }
  std::string describe() const override { return "fake"; }

 private:
  template <typename Nothing>
  Nothing look() {
    ++*looks_;
    return {};
  }

  UnjoinedConnection none_;
  std::atomic<int>* const looks_;
};

// All but rank 1 are late, and stay so.
class NoLinks final : public LateLinks {
 public:
  bool isLate(Rank peer) const override { return peer > 1; }
  void want(Rank) override {}
  std::vector<News> poll() override { return {}; }
  bool hasNews() const override { return false; }
  bool isAnyUnderWay() const override { return false; }
  std::string whyNotYet(Rank) const override { return ""; }
};

TEST(LatePeers, AreNotLookedAtWhileAnotherIsWaitedFor) {
  constexpr Rank kRanks = 9;
  std::atomic<int> polls = 0;
  std::atomic<int> looks = 0;
  FakeConnection from(0);
  Peers peers;
  peers.connections.resize(kRanks);
  auto near = std::make_unique<FakeConnection>(1);
  near->other = &from;
  from.other = near.get();
  peers.connections[1] = std::move(near);
  for (Rank peer = 2; peer < kRanks; ++peer) {
    peers.connections[static_cast<std::size_t>(peer)] = std::make_unique<WatchedConnection>(peer, &looks);
  }
  peers.hosts.resize(kRanks);
  peers.whyNotFaster.resize(kRanks);
  peers.late = std::make_unique<NoLinks>();
  peers.wires.push_back(std::make_unique<CountingWire>(&polls));
  peers.doorbell = std::make_unique<FakeDoorbell>();
  Options options;
  options.ringBytes = 512;
  options.timeout = std::chrono::seconds(20);
  const std::shared_ptr<Engine> engine = Engine::create(std::move(peers), 0, kRanks, options, "g").value();
  std::array<std::byte, 8> bytes{};
  const auto recv = std::make_shared<PointRecv>(1, 3, bytes);
  recv->description = std::make_shared<const std::string>("recv");
  ASSERT_TRUE(engine->submitPoint(recv, [&](PointToPoint& points) { points.start(recv); }).isOk());
  // Long enough for the questions of questions.cc.
  EXPECT_EQ(recv->wait(Clock::now() + std::chrono::milliseconds(300)).code(), StatusCode::kTimeout);
  EXPECT_GT(polls, 0);
  EXPECT_EQ(looks, 0);
  engine->abort({StatusCode::kAborted, "the end of the test"});
  engine->shutdown();
}

// The test joins the peers.
class HandedLinks final : public LateLinks {
 public:
  bool isLate(Rank peer) const override { return peer == 1; }
  void want(Rank) override {}
  std::vector<News> poll() override { return std::exchange(news, {}); }
  bool hasNews() const override { return !news.empty(); }
  bool isAnyUnderWay() const override { return false; }
  std::string whyNotYet(Rank) const override { return ""; }

  std::vector<News> news;
};

TEST(LatePeers, ReceiveAFailureFromBeforeTheyWereJoined) {
  FakeConnection from(0);
  auto late = std::make_unique<FakeConnection>(1);
  FakeConnection& to = *late;
  to.other = &from;
  from.other = &to;
  auto owned = std::make_unique<HandedLinks>();
  HandedLinks& links = *owned;
  Peers peers;
  peers.connections.resize(2);
  peers.connections[1] = std::make_unique<UnjoinedConnection>(1, "fake", Options{});
  peers.hosts.resize(2);
  peers.late = std::move(owned);
  const GroupFacts facts{.rank = 0, .worldSize = 2, .label = "rank 0", .segmentBytes = 512, .hosts = peers.hosts};
  OpRecorder recorder(0);
  FailureCallback callback;
  std::atomic<bool> hasWork = false;
  GroupState state(peers, facts, recorder, callback, hasWork);
  state.failure.fail({StatusCode::kAborted, "the reason"});
  state.poll();
  links.news.push_back({1, std::unique_ptr<Connection>(std::move(late))});
  state.poll();
  ASSERT_EQ(to.sent(Lane::kControl).size(), 1U);
  const auto fail = readFrame<FailFrame>(to.sent(Lane::kControl).front());
  ASSERT_TRUE(fail.has_value());
  EXPECT_EQ(textOf(fail->payload), "rank 0 gave up: the reason");
}

}  // namespace
}  // namespace shardwire::internal
