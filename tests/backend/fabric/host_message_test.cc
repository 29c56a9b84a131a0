// The messages between processes of one host: their bytes, and which messages are refused and why.
#include "backend/fabric/host_message.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/hex.h"

namespace shardwire::internal {
namespace {

using testing::toHex;

const HostHello kHostHello{RandomId{{0x0706050403020100, 0x0f0e0d0c0b0a0908}}, RandomId{{0x11, 0x22}}};

// magic, version, kind | fields
TEST(HostMessage, WireBytesAreThese) {
  EXPECT_EQ(toHex(encodeHostHello(kHostHello)),
            "575348"
            "4d0400000001"
            "000102030405060708090a0b0c0d0e0f"
            "11000000000000002200000000000000");
  EXPECT_EQ(toHex(encodeHostRefusal({StatusCode::kMismatch, "no"})),
            "5753484d0400000002"
            "05"
            "020000006e6f");
  EXPECT_EQ(toHex(encodeSecretRequest(kHostHello.token)),
            "5753484d0400000004"
            "11000000000000002200000000000000");
  EXPECT_EQ(toHex(encodeSecret("ab")),
            "5753484d0400000005"
            "020000006162");
}

TEST(HostMessage, IsReadAsWrittenAndRefusedWhenCutOrLonger) {
  const std::string hello = encodeHostHello(kHostHello);
  const auto read = decodeHostHello(hello);
  ASSERT_TRUE(read.isOk()) << read.status().message();
  EXPECT_EQ(encodeHostHello(*read), hello);
  EXPECT_EQ(decodeSecret(encodeSecret("ab")).value(), "ab");
  for (std::size_t size = 0; size < hello.size(); ++size) {
    EXPECT_EQ(decodeHostHello(hello.substr(0, size)).status().code(), StatusCode::kMismatch) << size;
  }
  EXPECT_EQ(decodeHostHello(hello + "x").status().message(),
            "a garbled hello message from another process of this host");
  EXPECT_EQ(decodeSecret(encodeSecret("")).status().message(),
            "a garbled secret message from another process of this host");
}

TEST(HostMessage, OfAnotherProtocolReleaseOrKindIsRefused) {
  std::string other = encodeHostHello(kHostHello);
  other[0] = 'x';
  EXPECT_EQ(decodeHostHello(other).status().code(), StatusCode::kMismatch);
  other = encodeHostHello(kHostHello);
  other[4] = 77;
  const Status version = decodeHostHello(other).status();
  EXPECT_EQ(version.code(), StatusCode::kUnsupported);
  EXPECT_NE(version.message().find("the other side speaks version 77 of the shm handshake, this rank version 4"),
            std::string::npos)
      << version.message();
  EXPECT_EQ(decodeHostHello(encodeSecret(std::string(28, 'x'))).status().code(), StatusCode::kMismatch);
  other = encodeHostHello(kHostHello);
  other[8] = static_cast<char>(HostMessage::kWelcome);
  EXPECT_EQ(decodeHostHello(other).status().code(), StatusCode::kMismatch);
  EXPECT_TRUE(isSecretRequest(encodeSecretRequest(kHostHello.token)));
  EXPECT_FALSE(isSecretRequest(encodeHostHello(kHostHello)));
}

// The reader of any message gets the reason inside of a refusal, and never success.
TEST(HostMessage, ARefusalIsTheErrorInside) {
  const Status reason(StatusCode::kTimeout, "too late");
  EXPECT_EQ(decodeHostHello(encodeHostRefusal(reason)).status(), reason);
  EXPECT_EQ(decodeSecret(encodeHostRefusal(reason)).status(), reason);
  const std::string garbled = "a garbled refusal message from another process of this host";
  EXPECT_EQ(decodeSecret(encodeHostRefusal(reason) + "x").status().message(), garbled);
  EXPECT_EQ(decodeSecret(encodeHostRefusal(Status::ok())).status().message(), garbled);
}

}  // namespace
}  // namespace shardwire::internal
