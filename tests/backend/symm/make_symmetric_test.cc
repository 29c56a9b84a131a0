// Tests how the making of a block ends where the ranks receive different notices: the engine of rank 0, with the test
// in the place of rank 1.
#include "backend/symm/make_symmetric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "backend/memory/shared_heap.h"
#include "backend/symm/deferred_release.h"
#include "tests/backend/exec/fake_engine.h"

namespace shardwire::internal {
namespace {

// Rank 1's part, as rank 0 holds the part.
class FakeHeld final : public HeldMemory {
 public:
  explicit FakeHeld(std::size_t size) : bytes_(size) {}
  std::byte* bytes() const override { return bytes_.data(); }
  void release(const std::function<void()>& notify) override {
    ++numReleased;
    notify();
  }
  bool isOwnerGone() const override { return isGone; }
  std::string ownersState() const override { return ""; }
  bool isUntouched() const {
    return std::ranges::all_of(bytes_, [](std::byte each) { return each == std::byte{0}; });
  }

  int numReleased = 0;
  bool isGone = false;

 private:
  mutable Bytes bytes_;
};

class MakeSymmetric : public EngineTest {
 protected:
  static constexpr std::size_t kBytes = 100000;
  static std::uint64_t usedBytes() { return (*SharedHeap::instance())->usedBytes(); }

  MakeSymmetric() : held_(std::make_shared<FakeHeld>(SymmetricBlock::partBytes(kBytes, 2, 8))) {
    engine_->locked([&](const GroupState&) { to_->held = held_; });
  }
  // Takes the blob of rank 0's next exchange; rank 1 answers with the same blob, or not at all.
  void takeBlob(bool isAnswered) {
    bool isTaken = false;
    while (!isTaken) {
      engine_->locked([&](const GroupState&) {
        auto& frames = to_->sent(Lane::kControl);
        if (!frames.empty()) {
          isTaken = readFrame<BlobFrame>(frames.front()).has_value();
          if (isTaken && isAnswered) {
            from_.sent(Lane::kControl).push_back(frames.front());
          }
          frames.pop_front();
        }
      });
      std::this_thread::yield();
    }
  }
  // Rank 0's end of a block: rank 0 is interrupted after all its messages to rank 1, before the last answer of rank 1
  // arrives.
  Status makeInVain(const SymmetricRequest& request = {.bytes = kBytes, .text = "bytes"}) {
    std::thread rank1([&] {
      takeBlob(true);
      takeBlob(false);
      engine_->abort({StatusCode::kAborted, "enough"});
    });
    const auto made = makeSymmetric(engine_, request, std::nullopt, [] { return Status::ok(); });
    rank1.join();
    return made.status();
  }

  const std::shared_ptr<FakeHeld> held_;
};

// Rank 1 may have the block: the heap does not reuse rank 0's part until rank 1 can no longer write to the part.
TEST_F(MakeSymmetric, APartThatAPeerMayHoldIsKeptWhenOnlyThisRankFails) {
  releaseUnheld();
  const std::size_t deferred = numDeferred();
  const std::uint64_t before = usedBytes();
  EXPECT_EQ(makeInVain().code(), StatusCode::kAborted);
  EXPECT_GE(usedBytes(), before + kBytes);
  EXPECT_EQ(numDeferred(), deferred + 1);
  // Rank 1 may have failed as well, and may have reused its part.
  EXPECT_EQ(held_->numReleased, 1);
  EXPECT_TRUE(held_->isUntouched());
  held_->isGone = true;
  releaseUnheld();
  EXPECT_EQ(numDeferred(), deferred);
  EXPECT_EQ(usedBytes(), before);
}

// Rank 0 holds rank 1's part and the pages that rank 1 attached, and gives both back at once. Rank 0's own pages stay
// as long as its part.
TEST_F(MakeSymmetric, AttachedPagesOfAPeerGoBackWhenOnlyThisRankFails) {
  releaseUnheld();
  auto pages = std::make_shared<Bytes>(4096);
  const std::weak_ptr<Bytes> own = pages;
  const Status made =
      makeInVain({.bytes = kBytes, .text = "bytes", .attached = std::exchange(pages, nullptr), .attachedBytes = 4096});
  EXPECT_EQ(made.code(), StatusCode::kAborted);
  EXPECT_EQ(held_->numReleased, 2);
  EXPECT_TRUE(held_->isUntouched());
  EXPECT_FALSE(own.expired());
  held_->isGone = true;
  releaseUnheld();
  EXPECT_TRUE(own.expired());
}

// Rank 1 gave up, and makes another block: the wants of the second block are no answer about the first.
TEST_F(MakeSymmetric, StatesToARankThatBeginsAnewWhichStepEachIsIn) {
  std::atomic<bool> isOver{false};
  std::thread rank1([&] {
    Bytes wants;
    while (wants.empty()) {
      engine_->locked([&](const GroupState&) {
        for (const Bytes& frame : to_->sent(Lane::kControl)) {
          wants = readFrame<BlobFrame>(frame).has_value() ? frame : wants;
        }
      });
      std::this_thread::yield();
    }
    takeBlob(true);
    BlobFrame anew = *readFrame<BlobFrame>(wants);
    ++anew.operation.seq;
    put(Lane::kControl, frameOf(anew, readFrame<BlobFrame>(wants)->payload));
    while (!textOfFirst<DesyncFrame>().has_value() && !isOver) {
      std::this_thread::yield();
    }
    put(Lane::kControl, frameOf(DesyncFrame{.seq = anew.operation.seq}, bytesOf(kOffersSymmetric)));
  });
  const auto made =
      makeSymmetric(engine_, {.bytes = kBytes, .text = "bytes"}, std::chrono::seconds(20), [] { return Status::ok(); });
  isOver = true;
  rank1.join();
  EXPECT_EQ(made.status().code(), StatusCode::kMismatch);
  const std::string text = made.status().message();
  EXPECT_NE(text.find("rank 0 called symmetric memory (2 of 2: whether each rank has it)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1 called symmetric memory (1 of 2: what each rank wants)"), std::string::npos) << text;
  held_->isGone = true;
  releaseUnheld();
}

// Rank 1 on another host could only ask, and would be refused.
TEST_F(MakeSymmetric, APartThatPeersOnlyAskForGoesBackAtOnce) {
  releaseUnheld();
  const std::size_t deferred = numDeferred();
  const std::uint64_t before = usedBytes();
  engine_->locked([&](const GroupState&) { to_->held = nullptr; });
  EXPECT_EQ(makeInVain().code(), StatusCode::kAborted);
  EXPECT_EQ(numDeferred(), deferred);
  EXPECT_EQ(usedBytes(), before);
}

}  // namespace
}  // namespace shardwire::internal
