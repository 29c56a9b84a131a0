#include "backend/bootstrap/address.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "backend/base/interruptible_wait.h"

namespace shardwire::internal {
namespace {

RankAddress sample() {
  RankAddress address;
  address.worldSize = 9;
  address.bootId = "boot";
  address.host = "h";
  address.pid = 7;
  address.uid = 1000;
  address.process = RandomId{{8, 9}};
  address.socketName = "s-1";
  address.processToken = RandomId{{1, 2}};
  address.token = RandomId{{3, 4}};
  address.networkNamespace = 5;
  address.kernel = "k";
  address.userNamespace = 6;
  address.hasJobToken = true;
  address.joinsLate = true;
  address.lifeName = "l";
  address.lifeLinks = {{"1", 0, 1, "e"}};
  address.links = {{"::1", 2, 0x1234, "lo"}};
  address.transports[1] = {{}, "why"};
  address.transports[3] = {"t", {}};
  return address;
}

TEST(RankAddress, HasOneWireFormat) {
  const std::string golden =
      std::string("SWAD\x06\0\0\0", 8) + std::string("\0\0\0\0\0", 5) + std::string("\x09\0\0\0\x04\0\0\0boot", 12) +
      std::string("\x05\0\0\0\0\0\0\0", 8) + std::string("\x01\0\0\0k\x06\0\0\0\0\0\0\0", 13) +
      std::string("\x01\0\0\0h", 5) + std::string("\x07\0\0\0\xe8\x03\0\0", 8) +
      std::string("\x08\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0", 16) +
      // the flags of the job token and of late joining, the endpoint, the sign of life with one link, the token
      std::string("\x01\x01\x03\0\0\0s-1", 9) + std::string("\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0", 16) +
      std::string("\x01\0\0\0l", 5) + std::string("\x01\0\0\0\x01\0\0\0", 8) + "1" +
      std::string("\0\0\0\0\x01\0\0\0\x01\0\0\0e", 13) + std::string("\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0", 16) +
      // one link
      std::string("\x01\0\0\0\x03\0\0\0::1\x02\0\0\0\x34\x12\0\0\x02\0\0\0lo", 25) +
      // by transport: the bytes, the reason why not
      std::string(8, '\0') + std::string("\0\0\0\0\x03\0\0\0why", 11) + std::string(8, '\0') +
      std::string("\x01\0\0\0t\0\0\0\0", 9);
  EXPECT_EQ(encodeAddress(sample()), golden);
  const auto decoded = decodeAddress(golden);
  ASSERT_TRUE(decoded.isOk()) << decoded.status().message();
  EXPECT_EQ(*decoded, sample());
}

TEST(RankAddress, CarriesAFailure) {
  RankAddress address = sample();
  address.failure = {StatusCode::kSystem, "no memory"};
  auto decoded = decodeAddress(encodeAddress(address));
  ASSERT_TRUE(decoded.isOk());
  EXPECT_EQ(decoded->failure, address.failure);
  address.failure = {StatusCode::kInterrupted, "Ctrl-C"};  // of that rank alone
  decoded = decodeAddress(encodeAddress(address));
  ASSERT_TRUE(decoded.isOk());
  EXPECT_EQ(decoded->failure, Status(StatusCode::kAborted, "Ctrl-C"));
}

TEST(RankAddress, CarriesAFailureOfEachCode) {
  RankAddress address = sample();
  for (int code = 1; code < kNumStatusCodes; ++code) {
    address.failure = {static_cast<StatusCode>(code), "why"};
    const auto decoded = decodeAddress(encodeAddress(address));
    ASSERT_TRUE(decoded.isOk()) << code << ": " << decoded.status().message();
    EXPECT_EQ(decoded->failure, Status(codeForPeers(static_cast<StatusCode>(code)), "why"));
  }
}

TEST(RankAddress, RefusesWhatIsNone) {
  const std::string good = encodeAddress(sample());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decodeAddress(std::string_view(good).substr(0, size)).isOk()) << size;
  }
  EXPECT_FALSE(decodeAddress(good + "x").isOk());
  std::string other = good;
  other[4] = 9;
  EXPECT_EQ(decodeAddress(other).status().code(), StatusCode::kUnsupported);
  EXPECT_NE(decodeAddress(other).status().message().find("version 9"), std::string::npos);
  other = good;
  other[8] = 77;  // an unknown status code
  EXPECT_EQ(decodeAddress(other).status().code(), StatusCode::kMismatch);
  other[8] = static_cast<char>(StatusCode::kInterrupted);  // never sent
  EXPECT_EQ(decodeAddress(other).status().code(), StatusCode::kMismatch);
}

TEST(RankAddress, SurvivesRandomBytes) {
  std::mt19937 random(1);
  const std::string good = encodeAddress(sample());
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int change = 0; change < 3; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    const auto decoded = decodeAddress(bytes);
    if (decoded.isOk()) {
      EXPECT_EQ(encodeAddress(*decoded).size(), bytes.size());
    }
  }
}

TEST(RankAddress, OfThisProcessIsNewEachTime) {
  const auto a = makeAddress();
  const auto b = makeAddress();
  ASSERT_TRUE(a.isOk() && b.isOk());
  EXPECT_EQ(a->bootId, b->bootId);
  EXPECT_EQ(a->bootId.size(), 36U);
  EXPECT_EQ(a->pid, static_cast<std::uint32_t>(::getpid()));
  EXPECT_NE(a->lifeName, b->lifeName);
  EXPECT_NE(a->token, b->token);
}

}  // namespace
}  // namespace shardwire::internal
