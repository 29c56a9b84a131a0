// A group whose ranks are objects of one thread, joined by queues as links: a test sees the steps of operations, and
// can put any frame into a lane. Reads of a peer's memory go to exposed memory, and nowhere else.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/exec/activity.h"
#include "backend/exec/frame.h"
#include "backend/exec/point_to_point.h"
#include "backend/exec/run_context.h"

namespace shardwire::internal {

using Bytes = std::vector<std::byte>;

template <typename F>
Bytes frameOf(const F& fields, Payload payload = {}) {
  Bytes frame(kHeadBytes<F> + payload.size());
  writeFrame(frame, fields, payload.size());
  std::copy(payload.begin(), payload.end(), frame.begin() + kHeadBytes<F>);
  return frame;
}

class FakeConnection final : public Connection {
 public:
  explicit FakeConnection(Rank peer) : peer_(peer) {}

  Rank peer() const override { return peer_; }
  const char* transportName() const override { return "fake"; }
  std::span<std::byte> reserve(Lane lane, std::size_t minBytes, std::size_t maxBytes) override {
    EXPECT_LE(minBytes, maxFrameBytes(lane));
    if (sent(lane).size() >= maxFrames || minBytes > room) {
      return {};
    }
    reserved_ = Bytes(std::min({maxBytes, maxFrameBytes(lane), room}));
    return reserved_;
  }
  void commit(Lane lane, std::size_t bytes) override {
    ASSERT_LE(bytes, reserved_.size());
    reserved_.resize(bytes);
    sent(lane).push_back(std::move(reserved_));
  }
  std::size_t maxFrameBytes(Lane) const override { return 1024; }
  // A separate copy each time, so that ASan sees reads past the end.
  std::span<const std::byte> peek(Lane lane) override {
    auto& frames = other->sent(lane);
    return frames.empty() ? std::span<const std::byte>() : frames.front();
  }
  void release(Lane lane) override {
    ASSERT_FALSE(other->sent(lane).empty());
    other->sent(lane).pop_front();
  }
  Reach expose(const void* bytes, std::size_t size, RemoteAddress* address) override {
    if (reach != Reach::kNone) {
      const auto value = reinterpret_cast<std::uint64_t>(bytes);
      exposed.push_back({value, size});
      *address = {kFirstExposure, value};
    }
    return reach;
  }
  void conceal(const RemoteAddress&) override { ++numConcealed; }
  ReadLimits readLimits() const override { return limits; }
  const std::byte* map(const RemoteAddress& address, std::size_t size) override {
    return other->hasExposed(address.value, size) ? reinterpret_cast<const std::byte*>(address.value) : nullptr;
  }
  Status read(std::span<const MemoryRun> runs) override {
    for (const MemoryRun& run : runs) {
      if (!other->hasExposed(run.remote, run.bytes)) {
        return {StatusCode::kPeerFailed, "rank " + std::to_string(peer_) + " has no such memory"};
      }
      std::memcpy(run.local, reinterpret_cast<const std::byte*>(run.remote), run.bytes);
    }
    return Status::ok();
  }
  bool fetch(std::uint32_t, std::span<const MemoryRun> runs, FetchCount* count) override {
    ++count->pending;
    fetches.push_back({{runs.begin(), runs.end()}, count});
    return true;
  }
  bool hasWithdrawn() const override { return withdrawn; }
  std::shared_mutex* readersLock() override { return readers; }
  Result<std::shared_ptr<HeldMemory>> hold(const HeapPlace& place, std::size_t size) override {
    return held != nullptr ? Result<std::shared_ptr<HeldMemory>>(held) : Connection::hold(place, size);
  }
  Status health() override { return Status::ok(); }
  std::string describe() const override { return "fake"; }

  // The requested bytes arrive.
  void endFetches() {
    for (auto& [runs, count] : std::exchange(fetches, {})) {
      EXPECT_TRUE(read(runs).isOk());
      --count->pending;
    }
  }
  std::deque<Bytes>& sent(Lane lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  bool hasExposed(std::uint64_t address, std::size_t size) const {
    return std::any_of(exposed.begin(), exposed.end(), [&](const auto& extent) {
      return address >= extent.first && size <= extent.second && address - extent.first <= extent.second - size;
    });
  }

  FakeConnection* other = nullptr;  // the peer's end
  std::size_t maxFrames = 64;       // in a lane
  std::size_t room = 1024;          // for the next frame
  Reach reach = Reach::kNone;
  ReadLimits limits;
  bool withdrawn = false;
  std::shared_mutex* readers = nullptr;  // the result of readersLock()
  std::vector<std::pair<std::uint64_t, std::size_t>> exposed;
  int numConcealed = 0;
  std::shared_ptr<HeldMemory> held;  // the result of hold(); null: no memory can be held
  struct Fetch {
    std::vector<MemoryRun> runs;
    FetchCount* count;
  };
  std::vector<Fetch> fetches;

 private:
  const Rank peer_;
  std::array<std::deque<Bytes>, kNumLanes> lanes_;
  Bytes reserved_;
};

class FakeRank final : public RunHost {
 public:
  FakeRank(Rank rank, int size) {
    for (Rank peer = 0; peer < size; ++peer) {
      connections_.push_back(peer == rank ? nullptr : std::make_unique<FakeConnection>(peer));
    }
    context.rank = rank;
    context.worldSize = size;
    context.label = "rank " + std::to_string(rank);
    context.segmentBytes = 512;
    context.connections = connections_;
    points = std::make_unique<PointToPoint>(context);
    blocked.resize(static_cast<std::size_t>(size));
  }

  void fail(Status why) override { failure = failure.isOk() ? std::move(why) : failure; }
  bool desync(Rank peer, std::uint64_t seq) override {
    desyncs.emplace_back(peer, seq);
    return true;
  }
  bool refuseStale(Rank) override { return false; }
  void finish(Activity&, Status status) override { finished = finished.has_value() ? finished : std::move(status); }

  void want(Activity&) override { ++numWants; }

  FakeConnection& to(Rank peer) { return static_cast<FakeConnection&>(context.connection(peer)); }

  // As the engine does: takes what came, then steps.
  void step(Activity& activity) {
    takeFrames(activity);
    blocked.assign(blocked.size(), false);
    if (failure.isOk()) {
      activity.step(blocked);
    }
  }
  // Gives the activity the frames that came.
  void takeFrames(Activity& activity) {
    for (Rank peer = 0; peer < context.worldSize; ++peer) {
      for (auto frame = peekControl(peer); !frame.empty() && failure.isOk(); frame = peekControl(peer)) {
        if (Status status = take(activity, peer, frame); !status.isOk()) {
          fail(std::move(status));
        }
        to(peer).release(Lane::kControl);
      }
    }
  }
  void start(Activity& activity, std::uint64_t seq) {
    activity.seq = seq;
    activity.description = std::make_shared<const std::string>("the test's operation");
    activity.enter(context, {});
  }

  RunContext context{.host = *this};
  std::unique_ptr<PointToPoint> points;
  std::vector<bool> blocked;
  Status failure;
  std::vector<std::pair<Rank, std::uint64_t>> desyncs;
  std::optional<Status> finished;
  int numWants = 0;

 private:
  std::span<const std::byte> peekControl(Rank peer) {
    return peer == context.rank ? std::span<const std::byte>() : to(peer).peek(Lane::kControl);
  }
  Status take(Activity& activity, Rank from, std::span<const std::byte> frame) {
    if (const auto post = readFrame<PostFrame>(frame)) {
      return activity.onPost(from, *post);
    }
    if (const auto ack = readFrame<AckFrame>(frame)) {
      return activity.onAck(from, *ack);
    }
    if (const auto blob = readFrame<BlobFrame>(frame)) {
      return activity.onBlob(from, *blob);
    }
    if (const auto cancel = readFrame<CancelFrame>(frame)) {
      return activity.onCancel(from, *cancel);
    }
    if (const auto eager = readFrame<EagerFrame>(frame)) {
      return points->onEager(from, *eager, frame);
    }
    if (const auto offer = readFrame<OfferFrame>(frame)) {
      return points->onOffer(from, *offer, frame);
    }
    if (const auto grant = readFrame<GrantFrame>(frame)) {
      return points->onGrant(from, *grant);
    }
    if (const auto taken = readFrame<TakenFrame>(frame)) {
      return points->onTaken(from, *taken);
    }
    return unreadableFrame(from, Lane::kControl, frame);
  }

  std::vector<std::unique_ptr<Connection>> connections_;
};

class FakeGroup {
 public:
  explicit FakeGroup(int size) {
    for (Rank rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<FakeRank>(rank, size));
    }
    for (Rank a = 0; a < size; ++a) {
      for (Rank b = 0; b < size; ++b) {
        if (a != b) {
          (*this)[a].to(b).other = &(*this)[b].to(a);
        }
      }
    }
  }
  FakeRank& operator[](Rank rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  Rank size() const { return static_cast<Rank>(ranks_.size()); }
  // Every end of every link.
  template <typename Set>
  void forEachLink(Set set) {
    for (Rank a = 0; a < size(); ++a) {
      for (Rank b = 0; b < size(); ++b) {
        if (a != b) {
          set((*this)[a].to(b));
        }
      }
    }
  }
  // Steps all ranks' operations in turns until all are done.
  template <typename Activities>
  void run(Activities& activities) {
    for (int turn = 0; turn < 10000; ++turn) {
      bool isOver = true;
      for (Rank rank = 0; rank < size(); ++rank) {
        auto& activity = *activities[static_cast<std::size_t>(rank)];
        (*this)[rank].step(activity);
        isOver &= activity.finished();
        ASSERT_TRUE((*this)[rank].failure.isOk()) << (*this)[rank].failure.message();
        ASSERT_TRUE((*this)[rank].desyncs.empty()) << "rank " << rank;
      }
      if (isOver) {
        return;
      }
      forEachLink([](FakeConnection& link) { link.endFetches(); });
    }
    FAIL() << "not over after 10000 turns";
  }

 private:
  std::vector<std::unique_ptr<FakeRank>> ranks_;
};

}  // namespace shardwire::internal
