#include "shardwire/options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace shardwire {
namespace {

constexpr const char* kNames[] = {"SHARDWIRE_TIMEOUT_S",
                                  "SHARDWIRE_SPIN_US",
                                  "SHARDWIRE_RING_BYTES",
                                  "SHARDWIRE_INLINE_BYTES",
                                  "SHARDWIRE_ORDINARY_PATH",
                                  "SHARDWIRE_HEAP_BYTES",
                                  "SHARDWIRE_STAGING_BYTES",
                                  "SHARDWIRE_ALGORITHMS",
                                  "SHARDWIRE_TRANSPORTS",
                                  "SHARDWIRE_HOST_ID",
                                  "NCCL_HOSTID",
                                  "SHARDWIRE_SOCKET_IFNAME",
                                  "NCCL_SOCKET_IFNAME",
                                  "GLOO_SOCKET_IFNAME",
                                  "SHARDWIRE_JOB_TOKEN",
                                  "SHARDWIRE_RDMA_DEVICES",
                                  "NCCL_IB_HCA",
                                  "SHARDWIRE_RDMA_GID_INDEX",
                                  "NCCL_IB_GID_INDEX"};

class OptionsTest : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kNames) {
      ::unsetenv(name);
    }
  }
};

TEST_F(OptionsTest, AreTheDefaultsWithoutVariables) {
  const auto options = Options::fromEnvironment();
  ASSERT_TRUE(options.isOk());
  EXPECT_EQ(toString(*options), toString(Options{}));
  EXPECT_EQ(toString(*options),
            "timeout_s=1800 spin_us=auto ring_bytes=1048576 inline_bytes=8192 ordinary_path=auto heap_bytes=auto transports=auto "
            "host_id=auto socket_ifname=auto "
            "rdma_devices=auto rdma_gid_index=-1 job_token=none algorithms=auto staging_bytes=268435456");
  ::setenv("SHARDWIRE_RING_BYTES", "", 1);  // empty counts as absent
  EXPECT_EQ(Options::fromEnvironment()->ringBytes, Options{}.ringBytes);
}

TEST_F(OptionsTest, ReadEveryVariable) {
  ::setenv("SHARDWIRE_TIMEOUT_S", "2.5", 1);
  ::setenv("SHARDWIRE_SPIN_US", "20", 1);
  ::setenv("SHARDWIRE_RING_BYTES", "2M", 1);
  ::setenv("SHARDWIRE_INLINE_BYTES", "0", 1);
  ::setenv("SHARDWIRE_ORDINARY_PATH", "staged", 1);
  ::setenv("SHARDWIRE_HEAP_BYTES", "3G", 1);
  ::setenv("SHARDWIRE_STAGING_BYTES", "64M", 1);
  ::setenv("SHARDWIRE_ALGORITHMS", "broadcast=tree", 1);
  ::setenv("SHARDWIRE_TRANSPORTS", "^tcp", 1);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "eth", 1);  // goes before gloo's
  ::setenv("NCCL_IB_GID_INDEX", "3", 1);
  ::setenv("SHARDWIRE_JOB_TOKEN", "a secret", 1);  // never printed
  const auto options = Options::fromEnvironment();
  ASSERT_TRUE(options.isOk()) << options.status().message();
  EXPECT_EQ(
      toString(*options),
      "timeout_s=2.5 spin_us=20 ring_bytes=2097152 inline_bytes=0 ordinary_path=staged heap_bytes=3221225472 transports=^tcp "
      "host_id=auto socket_ifname=eth rdma_devices=auto rdma_gid_index=3 job_token=set algorithms=broadcast=tree staging_bytes=67108864");
  ::setenv("SHARDWIRE_ORDINARY_PATH", "cross_memory", 1);
  ::setenv("SHARDWIRE_SPIN_US", "-1", 1);
  EXPECT_EQ(Options::fromEnvironment()->ordinaryPath, OrdinaryPath::kCrossMemory);
  EXPECT_LT(Options::fromEnvironment()->spin, Duration::zero());
}

TEST_F(OptionsTest, RefuseWhatTheyCannotReadByNameAndValue) {
  const std::pair<const char*, const char*> bad[] = {{"SHARDWIRE_TIMEOUT_S", "0"},
                                                     {"SHARDWIRE_TIMEOUT_S", "-5"},
                                                     {"SHARDWIRE_TIMEOUT_S", "soon"},
                                                     {"SHARDWIRE_TIMEOUT_S", "1e300"},
                                                     {"SHARDWIRE_TIMEOUT_S", "nan"},
                                                     {"SHARDWIRE_SPIN_US", "10us"},
                                                     {"SHARDWIRE_RING_BYTES", "1"},
                                                     {"SHARDWIRE_RING_BYTES", "2T"},
                                                     {"SHARDWIRE_RING_BYTES", "99999999999999999999"},
                                                     {"SHARDWIRE_RING_BYTES", "-1"},
                                                     {"SHARDWIRE_RING_BYTES", "99999999999G"},
                                                     {"SHARDWIRE_INLINE_BYTES", "1G"},
                                                     {"SHARDWIRE_ORDINARY_PATH", "Staged"},
                                                     {"SHARDWIRE_HEAP_BYTES", "5"},
                                                     {"SHARDWIRE_STAGING_BYTES", "1M"},
                                                     {"SHARDWIRE_RDMA_GID_INDEX", "one"},
                                                     {"SHARDWIRE_HEAP_BYTES", "1e9"}};
  for (const auto& [name, value] : bad) {
    clear();
    ::setenv(name, value, 1);
    const auto options = Options::fromEnvironment();
    ASSERT_FALSE(options.isOk()) << name << "=" << value;
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(options.status().message().find(std::string(name) + "=" + value), std::string::npos) << options.status().message();
  }
}

}  // namespace
}  // namespace shardwire
