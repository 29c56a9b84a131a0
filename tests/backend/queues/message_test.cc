#include "backend/queues/message.h"

#include <gtest/gtest.h>

#include <cstring>

namespace shardwire::internal {
namespace {

QueuePart partOf(std::size_t size, char fill) {
  QueuePart part = newQueuePart(size).value();
  std::memset(part.bytes, fill, size);
  return part;
}

QueueMessage put(std::string head) {
  return {QueueOp::kPut, kNotBlocking, 3, 77, -5, std::move(head), {}, {}};
}

TEST(QueueMessages, ShortPartsTravelInTheFrame) {
  const std::vector<QueuePart> parts = {partOf(3, 'a'), partOf(0, 'b'), partOf(100, 'c')};
  const EncodedMessage encoded = encodeMessage(put("head"), parts);
  ASSERT_TRUE(encoded.areWithin);
  EXPECT_EQ(encoded.rest, nullptr);
  const QueueMessage read = decodeMessage(*encoded.frame, {}).value();
  EXPECT_EQ(read.op, QueueOp::kPut);
  EXPECT_EQ(read.flags, kNotBlocking);
  EXPECT_EQ(read.queue, 3U);
  EXPECT_EQ(read.request, 77U);
  EXPECT_EQ(read.value, -5);
  EXPECT_EQ(read.head, "head");
  ASSERT_TRUE(read.parts.has_value());
  ASSERT_EQ(read.parts->size(), parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ((*read.parts)[i].size, parts[i].size);
    EXPECT_EQ(std::memcmp((*read.parts)[i].bytes, parts[i].bytes, parts[i].size), 0);
  }
}

TEST(QueueMessages, LongPartsFollow) {
  const EncodedMessage encoded = encodeMessage(put("head"), {partOf(3000, 'a')});
  EXPECT_FALSE(encoded.areWithin);
  const QueueMessage read = decodeMessage(*encoded.frame, {}).value();
  EXPECT_FALSE(read.parts.has_value());
  EXPECT_EQ(read.partSizes, std::vector<std::uint64_t>{3000});
}

TEST(QueueMessages, ALongHeadFollows) {
  const std::string head(5000, 'h');
  const EncodedMessage encoded = encodeMessage(put(head), {partOf(10, 'a')});
  ASSERT_NE(encoded.rest, nullptr);
  EXPECT_EQ(headOutside(*encoded.frame).value(), head.size() + 8);
  EXPECT_EQ(requestOf(*encoded.frame), 77U);  // known without the head
  const QueueMessage read = decodeMessage(*encoded.frame, *encoded.rest).value();
  EXPECT_EQ(read.head, head);
  EXPECT_EQ(read.partSizes, std::vector<std::uint64_t>{10});
  EXPECT_FALSE(decodeMessage(*encoded.frame, "short").isOk());
}

TEST(QueueMessages, OtherBytesAreAnError) {
  const EncodedMessage encoded = encodeMessage(put("head"), {partOf(16, 'a')});
  QueueFrame frame = *encoded.frame;
  frame[4] = std::byte{99};  // the version
  EXPECT_FALSE(headOutside(frame).isOk());
  EXPECT_FALSE(decodeMessage(frame, {}).isOk());
  frame = *encoded.frame;
  frame[32] = std::byte{200};  // the number of parts
  EXPECT_FALSE(decodeMessage(frame, {}).isOk());
  frame = *encoded.frame;
  frame[41] = std::byte{0xff};  // the size of the part
  EXPECT_FALSE(decodeMessage(frame, {}).isOk());
}

}  // namespace
}  // namespace shardwire::internal
