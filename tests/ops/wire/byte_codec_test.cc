#include "ops/wire/byte_codec.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

// The bytes of every field, equal in all wire formats.
TEST(ByteCodec, WritesGoldenBytes) {
  ByteWriter writer;
  writer.u8(0xfe);
  writer.u32(0x04030201);
  writer.u64(0x0807060504030201);
  writer.text("ab");
  writer.fixed<std::int32_t>(-2);
  writer.varint(300);
  writer.signedVarint(-3);
  writer.varintText("cde");
  writer.varintDims({1, -1});
  writer.fixedDims({-2});
  const std::string golden(
      "\xfe"
      "\x01\x02\x03\x04"
      "\x01\x02\x03\x04\x05\x06\x07\x08"
      "\x02\x00\x00\x00"
      "ab"
      "\xfe\xff\xff\xff"
      "\xac\x02"
      "\x05"
      "\x03"
      "cde"
      "\x02\x02\x01"
      "\x01\xfe\xff\xff\xff\xff\xff\xff\xff",
      42);
  EXPECT_EQ(writer.bytes(), golden);
  ByteReader reader(golden);
  EXPECT_EQ(reader.u8(), 0xfe);
  EXPECT_EQ(reader.u32(), 0x04030201U);
  EXPECT_EQ(reader.u64(), 0x0807060504030201U);
  EXPECT_EQ(reader.text(2), "ab");
  EXPECT_EQ(reader.fixed<std::int32_t>(), -2);
  EXPECT_EQ(reader.varint(), 300U);
  EXPECT_EQ(reader.signedVarint(), -3);
  EXPECT_EQ(reader.varintText(), "cde");
  EXPECT_EQ(reader.varintDims(), (Dims{1, -1}));
  EXPECT_FALSE(reader.isDone());
  EXPECT_EQ(reader.fixedDims(), Dims{-2});
  EXPECT_TRUE(reader.isDone());
}

TEST(ByteCodec, StopsAtTheEndOfTheBytes) {
  ByteReader shorter("abc");
  EXPECT_EQ(shorter.u32(), 0U);
  EXPECT_FALSE(shorter.ok());
  EXPECT_EQ(shorter.u8(), 0U);  // nothing more is read, not even the bytes that are there
  ByteReader longText(
      std::string_view("\xff\xff\xff\xff"
                       "abc",
                       7));
  EXPECT_EQ(longText.text(1000), "");
  EXPECT_FALSE(longText.ok());
  ByteReader cutText(
      std::string_view("\x04\0\0\0"
                       "abc",
                       7));
  EXPECT_EQ(cutText.text(1000), "");
  EXPECT_FALSE(cutText.ok());
  ByteReader tooLong(std::string_view("\x03\0\0\0abc", 7));
  EXPECT_EQ(tooLong.text(2), "");
  EXPECT_FALSE(tooLong.isDone());
  ByteReader cutVarintText("\x04zzz");
  EXPECT_EQ(cutVarintText.varintText(), "");
  EXPECT_FALSE(cutVarintText.ok());
}

TEST(ByteCodec, RoundTripsVarints) {
  const std::uint64_t values[] = {0, 1, 127, 128, 300, UINT32_MAX, std::uint64_t{1} << 63, UINT64_MAX};
  for (const std::uint64_t value : values) {
    ByteWriter out;
    out.varint(value);
    out.signedVarint(static_cast<std::int64_t>(value));
    const std::string bytes = out.take();
    ByteReader in(bytes);
    EXPECT_EQ(in.varint(), value);
    EXPECT_EQ(in.signedVarint(), static_cast<std::int64_t>(value));
    EXPECT_TRUE(in.isDone());
  }
  ByteReader tooLong("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02");
  tooLong.varint();
  EXPECT_FALSE(tooLong.ok());
  ByteReader endless("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  endless.varint();
  EXPECT_FALSE(endless.ok());
}

TEST(ByteCodec, RefusesMoreDimsThanATensorHas) {
  ByteReader reader(std::string_view("\x11", 1));
  EXPECT_TRUE(reader.varintDims().empty());
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace shardwire::internal
