// Which requests a peer may make. The check is compared with the obvious check in wider arithmetic.
#include "backend/transport/exposed_memory.h"

#include <gtest/gtest.h>

#include <random>

namespace shardwire::testing {
namespace {

using namespace internal;

const void* at(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}

constexpr std::uint64_t kEnd = ~std::uint64_t{0};

TEST(Exposure, HoldsWhatLiesWithinAndNothingElse) {
  const Exposure exposure{kFirstExposure, 0x1000, 0x100};
  EXPECT_TRUE(exposure.holds(0x1000, 0x100));
  EXPECT_TRUE(exposure.holds(0x10ff, 1));
  EXPECT_TRUE(exposure.holds(0x1100, 0));
  EXPECT_FALSE(exposure.holds(0x1101, 0));
  EXPECT_FALSE(exposure.holds(0x0fff, 1));
  EXPECT_FALSE(exposure.holds(0x0fff, 0x102));
  EXPECT_FALSE(exposure.holds(0x1000, 0x101));
  EXPECT_FALSE(exposure.holds(0x1100, 1));
  EXPECT_FALSE(exposure.holds(0x1001, kEnd));  // the end wraps around, into the extent
  EXPECT_FALSE(exposure.holds(kEnd, 0x1010));
  EXPECT_FALSE(exposure.holds(0, kEnd));
}

TEST(Exposure, HoldsWhatAWiderArithmeticSays) {
  std::mt19937_64 random(5);
  const std::uint64_t places[] = {0, 1, 8, 0x7fff, std::uint64_t{1} << 63, kEnd - 8, kEnd - 1, kEnd};
  const auto any = [&] { return places[random() % std::size(places)] + random() % 3 - 1; };
  int numHeld = 0;
  for (int i = 0; i < 200000; ++i) {
    const Exposure exposure{kFirstExposure, any(), any()};
    const std::uint64_t address = random() % 2 == 0 ? exposure.first + any() : any();
    const std::uint64_t bytes = any();
    using Wide = unsigned __int128;
    if (Wide{exposure.first} + exposure.bytes > (Wide{1} << 64)) {
      continue;  // no memory of this process
    }
    const bool expected = address >= exposure.first && Wide{address} + bytes <= Wide{exposure.first} + exposure.bytes;
    ASSERT_EQ(exposure.holds(address, bytes), expected)
        << exposure.first << " " << exposure.bytes << ": " << address << " " << bytes;
    EXPECT_EQ(exposure.check({address, bytes}).isOk(), expected);
    numHeld += expected ? 1 : 0;
  }
  EXPECT_GT(numHeld, 1000);
}

TEST(ExposedMemory, GivesEachExtentANumberOfItsOwnUntilItIsConcealed) {
  ExposedMemory exposed;
  const RemoteAddress first = exposed.expose(at(0x1000), 16);
  const RemoteAddress again = exposed.expose(at(0x1000), 16);
  EXPECT_GE(first.space, kFirstExposure);
  EXPECT_NE(first.space, again.space);
  EXPECT_EQ(first.value, 0x1000U);
  ASSERT_TRUE(exposed.find(first.space).isOk());
  EXPECT_EQ(exposed.find(first.space)->bytes, 16U);
  exposed.conceal(first.space);
  exposed.conceal(first.space);
  EXPECT_FALSE(exposed.find(first.space).isOk());
  EXPECT_TRUE(exposed.find(again.space).isOk());
  EXPECT_NE(exposed.expose(at(0x1000), 16).space, first.space);
  exposed.concealAll();
  EXPECT_FALSE(exposed.find(again.space).isOk());
}

TEST(ExposedMemory, SaysWhatWasAskedForAndWhatThereIs) {
  ExposedMemory exposed;
  const RemoteAddress address = exposed.expose(at(0x1000), 16);
  EXPECT_EQ(exposed.find(address.space)->check({0x1008, 9}).message(),
            "9 bytes at 0x1008 of exposure 2, which is 16 bytes at 0x1000");
  EXPECT_EQ(exposed.find(0).status().message(), "bytes of exposure 0, which there is not or no longer");
}

}  // namespace
}  // namespace shardwire::testing
