// Which ports are used, and which ports of two ranks are joined. First machines and ports that cannot be used, and the
// choice of the GID; then slow ports, and devices without a port in use; then the filters of SHARDWIRE_RDMA_DEVICES; at
// last the published addresses, and the pairs of ports.
#include "backend/transport/rdma/rdma_device.h"

#include <gtest/gtest.h>

#include <array>

#include "backend/transport/rdma/rdma_address.h"
#include "backend/transport/rdma/registration_cache.h"
#include "tests/backend/transport/rdma/fake_verbs.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::FakeVerbs;

RailAddress roce(const char* device, std::uint8_t network, std::uint8_t host) {
  RailAddress rail;
  rail.device = device;
  rail.isEthernet = true;
  rail.gid = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, network, host};
  rail.mtu = IBV_MTU_4096;
  rail.mbps = 100000;
  return rail;
}
RailAddress infiniband(const char* device, std::uint16_t lid) {
  RailAddress rail;
  rail.device = device;
  rail.lid = lid;
  return rail;
}

TEST(RdmaPorts, AMachineWithoutDevicesSaysSo) {
  FakeVerbs::reset();
  const VerbsApi api = FakeVerbs::api();
  const auto ports = openRdmaPorts(api, Options{});
  EXPECT_EQ(ports.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(ports.status().message().find("no RDMA device"), std::string::npos) << ports.status().message();
}

TEST(RdmaPorts, EachPortThatDoesNotServeSaysWhy) {
  FakeVerbs& fake = FakeVerbs::reset();
  fake.addPort("mlx5_0").state = IBV_PORT_DOWN;
  fake.addPort("mlx5_0");  // no GID
  fake.addPort("mlx5_1").gids.push_back(FakeVerbs::ipv4Gid(1));
  const VerbsApi api = FakeVerbs::api();
  Options options;
  options.rdmaDevices = "mlx5_0";
  const auto ports = openRdmaPorts(api, options);
  ASSERT_FALSE(ports.isOk());
  for (const char* words :
       {"mlx5_0:1: down", "mlx5_0:2: has no GID", "mlx5_1:1: excluded by SHARDWIRE_RDMA_DEVICES=mlx5_0"}) {
    EXPECT_NE(ports.status().message().find(words), std::string::npos) << ports.status().message();
  }
}

TEST(RdmaPorts, TheGidIsRoceV2OverIpv4UnlessChosen) {
  FakeVerbs& fake = FakeVerbs::reset();
  auto& gids = fake.addPort("mlx5_0").gids;
  gids = {FakeVerbs::linkLocalGid(1), FakeVerbs::ipv4Gid(7, IBV_GID_TYPE_ROCE_V1), FakeVerbs::ipv4Gid(7),
          FakeVerbs::linkLocalGid(2)};
  const VerbsApi api = FakeVerbs::api();
  Options options;
  {
    const auto ports = openRdmaPorts(api, options);
    ASSERT_TRUE(ports.isOk()) << ports.status().message();
    EXPECT_EQ(ports->rails[0].gidIndex, 2);
    EXPECT_EQ(toString(ports->rails[0].address), "mlx5_0:1 (RoCE, 10.0.0.7)");
  }
  options.rdmaGidIndex = 3;
  {
    const auto ports = openRdmaPorts(api, options);
    ASSERT_TRUE(ports.isOk()) << ports.status().message();
    EXPECT_EQ(ports->rails[0].gidIndex, 3);
  }
  options.rdmaGidIndex = 9;
  EXPECT_NE(openRdmaPorts(api, options).status().message().find("SHARDWIRE_RDMA_GID_INDEX"), std::string::npos);
}

TEST(RdmaPorts, SlowPortsBesideFastOnesAreLeft) {
  FakeVerbs& fake = FakeVerbs::reset();
  for (const char* name : {"mlx5_0", "mlx5_1", "mlx5_2"}) {
    auto& port = fake.addPort(name);
    port.gids.push_back(FakeVerbs::ipv4Gid(1));
    port.speed = std::string(name) == "mlx5_1" ? 1 : 32;
  }
  const VerbsApi api = FakeVerbs::api();
  const auto ports = openRdmaPorts(api, Options{});
  ASSERT_TRUE(ports.isOk());
  ASSERT_EQ(ports->rails.size(), 2U);
  EXPECT_EQ(ports->rails[0].address.device, "mlx5_0");
  EXPECT_EQ(ports->rails[1].address.device, "mlx5_2");
}

// Memory is registered with each open device, for at most kMaxRails devices.
TEST(RdmaPorts, DevicesWithoutAPortInUseAreClosed) {
  FakeVerbs& fake = FakeVerbs::reset();
  for (const char* name : {"slow", "mlx5_0", "mlx5_1", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6"}) {
    auto& port = fake.addPort(name);
    port.gids.push_back(FakeVerbs::ipv4Gid(1));
    port.speed = std::string(name) == "slow" ? 1 : 32;
  }
  const VerbsApi api = FakeVerbs::api();
  const auto ports = openRdmaPorts(api, Options{});
  ASSERT_TRUE(ports.isOk()) << ports.status().message();
  ASSERT_EQ(ports->rails.size(), kMaxRails);
  EXPECT_EQ(ports->devices.size(), 3U);
  for (const Rail& rail : ports->rails) {
    ASSERT_LT(rail.device, ports->devices.size());
    EXPECT_EQ(ports->devices[rail.device]->name(), rail.address.device);
  }
  RegistrationCache cache(api, ports->devices, nullptr);
  std::array<std::byte, 64> memory;
  const auto pinned = cache.pin(memory.data(), memory.size(), false, nullptr);
  ASSERT_TRUE(pinned.isOk()) << pinned.status().message();
  EXPECT_EQ(fake.numRegistered, 3);
  cache.unpin(*pinned);
  EXPECT_EQ(fake.numRegistered, 0);
}

TEST(RdmaPorts, FiltersAreNcclS) {
  EXPECT_TRUE(admitsPort("", "mlx5_0", 1));
  EXPECT_TRUE(admitsPort("mlx5", "mlx5_0", 1));
  EXPECT_FALSE(admitsPort("=mlx5", "mlx5_0", 1));
  EXPECT_TRUE(admitsPort("=mlx5_0:2", "mlx5_0", 2));
  EXPECT_FALSE(admitsPort("mlx5_0:2", "mlx5_0", 1));
  EXPECT_TRUE(admitsPort("mlx5_1,mlx5_0:1", "mlx5_0", 1));
  EXPECT_FALSE(admitsPort("^mlx5_0", "mlx5_0", 1));
  EXPECT_TRUE(admitsPort("^mlx5_0,mlx5_1", "mlx5_2", 1));
  EXPECT_TRUE(admitsPort("^=mlx5_1", "mlx5_10", 1));
}

TEST(RdmaAddress, SurvivesItsEncodingAndNothingElseDoes) {
  const std::vector<RailAddress> rails = {roce("mlx5_0", 1, 2), infiniband("mlx5_1", 77)};
  const std::string bytes = encodeRailAddresses(rails);
  ASSERT_LE(bytes.size(), 4096U);
  const auto decoded = decodeRailAddresses(bytes);
  ASSERT_TRUE(decoded.isOk()) << decoded.status().message();
  EXPECT_EQ(*decoded, rails);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decodeRailAddresses(std::string_view(bytes).substr(0, size)).status().code(), StatusCode::kMismatch)
        << size;
  }
  EXPECT_FALSE(decodeRailAddresses(bytes + "x").isOk());
  EXPECT_FALSE(decodeRailAddresses(encodeRailAddresses({})).isOk());
}

TEST(RdmaAddress, PortsOfOneNetworkAreJoined) {
  const std::vector<RailAddress> a = {roce("a0", 1, 1), roce("a1", 2, 1)};
  const std::vector<RailAddress> b = {roce("b0", 2, 9), infiniband("b1", 3), roce("b2", 1, 9)};
  using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(pairRails(a, b), (Pairs{{0, 2}, {1, 0}}));
  EXPECT_TRUE(whyNoPair(a, b).empty());
}

TEST(RdmaAddress, DifferentLinkLayersAreNotJoinedAndBothSaySoAlike) {
  const std::vector<RailAddress> a = {roce("a0", 1, 1)};
  const std::vector<RailAddress> b = {infiniband("b0", 3)};
  EXPECT_FALSE(whyNoPair(a, b).empty());
  EXPECT_EQ(whyNoPair(a, b), whyNoPair(b, a));
}

}  // namespace
}  // namespace shardwire::internal
