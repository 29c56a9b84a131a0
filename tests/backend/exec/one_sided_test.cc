// Requests to parts of symmetric memory, and the owner of a part, over fake links: how long a part is served, which
// requests are refused, and how many requests wait for an answer.
#include "backend/exec/one_sided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "backend/exec/one_sided_requests.h"
#include "tests/backend/exec/fake_group.h"

namespace shardwire::internal {
namespace {

constexpr std::uint64_t kServedBlock = 5;
constexpr PartTag kBytesOfTheBlock{.block = kServedBlock, .elemBytes = 1, .numDims = 1};

// Notes the ranks that make no more requests.
class NotedPart final : public ServedPart {
 public:
  Status put(const PartBox&, Payload) override { return Status::ok(); }
  Status get(const PartBox& box, std::byte* elements) override {
    std::memset(elements, 7, static_cast<std::size_t>(numElements(box.shape)) * box.elemBytes);
    return Status::ok();
  }
  Result<std::uint64_t> apply(const WordFrame&) override { return std::uint64_t{0}; }
  void dropped(Rank peer) override { droppedBy.push_back(peer); }

  std::vector<Rank> droppedBy;
};

// Rank 0 of three, which owns a part.
class OwnerOfAPart : public ::testing::Test {
 protected:
  OwnerOfAPart() { owner_.serve(kServedBlock, part_); }

  // The payload of a request: first the extents, then the strides.
  static Bytes boxOfDims(std::initializer_list<std::int64_t> dims) {
    Bytes bytes(dims.size() * sizeof(std::int64_t));
    std::memcpy(bytes.data(), dims.begin(), bytes.size());
    return bytes;
  }
  Status get(std::int64_t extent) {
    const Bytes box = boxOfDims({extent, 1});
    return owner_.onGet(1, Received<GetFrame>{{.part = kBytesOfTheBlock, .request = 9}, box});
  }

  FakeGroup group_{3};
  OneSided owner_{group_[0].context};
  const std::shared_ptr<NotedPart> part_ = std::make_shared<NotedPart>();
};

TEST_F(OwnerOfAPart, ServesFromTheFirstAskersUntilThePartIsWithdrawn) {
  EXPECT_FALSE(owner_.isServing());
  owner_.expectRequests(kServedBlock, {1, 2});
  EXPECT_TRUE(owner_.isServing());
  owner_.withdraw(kServedBlock);
  EXPECT_FALSE(owner_.isServing());
}

// A rank that has the part mapped may go on using the part after the end of the group.
TEST_F(OwnerOfAPart, CountsAGoneRankAsDoneWhereTheRankAskedByRequests) {
  const auto other = std::make_shared<NotedPart>();
  owner_.serve(kServedBlock + 1, other);
  owner_.expectRequests(kServedBlock, {1});
  owner_.expectRequests(kServedBlock + 1, {1, 2});
  owner_.gone(2);
  EXPECT_EQ(part_->droppedBy, std::vector<Rank>{});
  EXPECT_EQ(other->droppedBy, std::vector<Rank>{2});
}

TEST_F(OwnerOfAPart, OwesAndServesNothingAfterTheEndOfTheGroup) {
  owner_.expectRequests(kServedBlock, {1, 2});
  group_[0].to(1).maxFrames = 0;
  EXPECT_TRUE(owner_.onFlush(1, Received<FlushFrame>{{9}, {}}).isOk());
  EXPECT_TRUE(owner_.isOwing());
  owner_.end();
  EXPECT_FALSE(owner_.isOwing());
  EXPECT_FALSE(owner_.isServing());
  EXPECT_EQ(part_->droppedBy, (std::vector<Rank>{1, 2}));
  group_[0].to(1).maxFrames = 64;
  EXPECT_TRUE(get(4).isOk());
  EXPECT_TRUE(group_[0].to(1).sent(Lane::kControl).empty());
}

TEST_F(OwnerOfAPart, AnswersAGetOfOneWholeFrameAndNoMore) {
  const auto most = static_cast<std::int64_t>(group_[0].to(1).maxFrameBytes(Lane::kControl) - kHeadBytes<ReplyFrame>);
  EXPECT_TRUE(get(most).isOk());
  ASSERT_EQ(group_[0].to(1).sent(Lane::kControl).size(), 1U);
  const auto reply = readFrame<ReplyFrame>(group_[0].to(1).sent(Lane::kControl).front());
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->payload.size(), static_cast<std::size_t>(most));
  const Status status = get(most + 1);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "rank 1 asked for more than one frame of symmetric memory #5");
}

// The frame lies in memory that the peer can change after the check of the frame.
TEST_F(OwnerOfAPart, RefusesABoxThatChangedAfterItsCheck) {
  const std::string why =
      "a request of rank 1 for symmetric memory #5 changed while it was read: a bug there, or a stray write";
  EXPECT_EQ(get(0), Status(StatusCode::kInternal, why));
  Bytes put = boxOfDims({3, 1});
  put.resize(put.size() + 2);  // one of three elements is missing
  EXPECT_EQ(owner_.onPut(1, Received<PutFrame>{{.part = kBytesOfTheBlock}, put}), Status(StatusCode::kInternal, why));
}

TEST(OneSidedRequests, WaitWhile64OfThemHaveNoAnswer) {
  FakeGroup group(2);
  group[0].to(1).maxFrames = 1000;
  OneSided caller(group[0].context);
  constexpr std::int64_t kBytes = 70 << 10;  // more than 64 frames
  std::vector<std::byte> memory(static_cast<std::size_t>(kBytes));
  const PartBox there{.block = kServedBlock, .shape = {kBytes}, .byteStrides = {1}};
  const auto get = std::make_shared<GetRequest>(1, there, StridedBox{memory.data(), {1}});
  const auto word = std::make_shared<WordRequest>(1, WordFrame{.block = kServedBlock}, false);
  const auto quiet = std::make_shared<QuietRequest>(std::vector<Rank>{1});
  EXPECT_FALSE(get->send(caller, 1));
  EXPECT_FALSE(word->send(caller, 1));
  EXPECT_FALSE(quiet->send(caller, 1));
  const auto& sent = group[0].to(1).sent(Lane::kControl);
  EXPECT_EQ(sent.size(), 64U);
  // Each has a number.
  EXPECT_TRUE(std::ranges::all_of(sent, [](const Bytes& frame) { return readFrame<GetFrame>(frame).has_value(); }));
}

}  // namespace
}  // namespace shardwire::internal
