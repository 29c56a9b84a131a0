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
                                  "SHARDWIRE_WARN_S",
                                  "SHARDWIRE_GRACE_S",
                                  "SHARDWIRE_CHECK",
                                  "SHARDWIRE_ALGORITHMS",
                                  "SHARDWIRE_TRANSPORTS",
                                  "SHARDWIRE_LINKS",
                                  "SHARDWIRE_HOST_ID",
                                  "NCCL_HOSTID",
                                  "SHARDWIRE_SOCKET_IFNAME",
                                  "NCCL_SOCKET_IFNAME",
                                  "GLOO_SOCKET_IFNAME",
                                  "SHARDWIRE_TCP_CRC",
                                  "SHARDWIRE_TCP_TLS",
                                  "SHARDWIRE_JOB_TOKEN",
                                  "SHARDWIRE_RDMA_DEVICES",
                                  "NCCL_IB_HCA",
                                  "SHARDWIRE_RDMA_GID_INDEX",
                                  "NCCL_IB_GID_INDEX",
                                  "SHARDWIRE_RECORDED_OPS",
                                  "SHARDWIRE_RECORD_FILE",
                                  "SHARDWIRE_STATUS",
                                  "TORCH_FR_BUFFER_SIZE",
                                  "TORCH_FR_DUMP_TEMP_FILE",
                                  "TORCH_NCCL_TRACE_BUFFER_SIZE",
                                  "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"};

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
            "timeout_s=1800 warn_s=60 grace_s=0.5 spin_us=auto ring_bytes=1048576 inline_bytes=8192 ordinary_path=auto "
            "heap_bytes=auto transports=auto "
            "links=auto host_id=auto socket_ifname=auto tcp_crc=0 tcp_tls=auto "
            "rdma_devices=auto rdma_gid_index=-1 job_token=none algorithms=auto check=default staging_bytes=268435456 "
            "recorded_ops=auto record_file=none status=0");
  ::setenv("SHARDWIRE_RING_BYTES", "", 1);  // empty counts as absent
  EXPECT_EQ(Options::fromEnvironment()->ringBytes, Options{}.ringBytes);
}

TEST_F(OptionsTest, ReadEveryVariable) {
  ::setenv("SHARDWIRE_TIMEOUT_S", "2.5", 1);
  ::setenv("SHARDWIRE_GRACE_S", "0.5", 1);
  ::setenv("SHARDWIRE_SPIN_US", "20", 1);
  ::setenv("SHARDWIRE_RING_BYTES", "2M", 1);
  ::setenv("SHARDWIRE_INLINE_BYTES", "0", 1);
  ::setenv("SHARDWIRE_ORDINARY_PATH", "staged", 1);
  ::setenv("SHARDWIRE_HEAP_BYTES", "3G", 1);
  ::setenv("SHARDWIRE_STAGING_BYTES", "64M", 1);
  ::setenv("SHARDWIRE_ALGORITHMS", "broadcast=tree", 1);
  ::setenv("SHARDWIRE_CHECK", "full", 1);
  ::setenv("SHARDWIRE_TRANSPORTS", "^tcp", 1);
  ::setenv("SHARDWIRE_LINKS", "lazy", 1);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_SOCKET_IFNAME", "eth", 1);  // goes before gloo's
  ::setenv("NCCL_IB_GID_INDEX", "3", 1);
  ::setenv("SHARDWIRE_JOB_TOKEN", "a secret", 1);  // never printed
  ::setenv("TORCH_FR_BUFFER_SIZE", "100", 1);
  ::setenv("TORCH_FR_DUMP_TEMP_FILE", "/tmp/trace_", 1);
  ::setenv("SHARDWIRE_STATUS", "1", 1);
  ::setenv("SHARDWIRE_TCP_CRC", "1", 1);
  ::setenv("SHARDWIRE_TCP_TLS", "off", 1);
  const auto options = Options::fromEnvironment();
  ASSERT_TRUE(options.isOk()) << options.status().message();
  EXPECT_EQ(toString(*options),
            "timeout_s=2.5 warn_s=60 grace_s=0.5 spin_us=20 ring_bytes=2097152 inline_bytes=0 ordinary_path=staged "
            "heap_bytes=3221225472 transports=^tcp "
            "links=lazy host_id=auto socket_ifname=eth tcp_crc=1 tcp_tls=off rdma_devices=auto rdma_gid_index=3 "
            "job_token=set "
            "algorithms=broadcast=tree check=full "
            "staging_bytes=67108864 recorded_ops=100 record_file=/tmp/trace_ status=1");
  ::setenv("SHARDWIRE_ORDINARY_PATH", "cross_memory", 1);
  ::setenv("SHARDWIRE_SPIN_US", "-1", 1);
  EXPECT_EQ(Options::fromEnvironment()->ordinaryPath, OrdinaryPath::kCrossMemory);
  EXPECT_LT(Options::fromEnvironment()->spin, Duration::zero());
}

TEST_F(OptionsTest, RefuseWhatTheyCannotReadByNameAndValue) {
  const std::pair<const char*, const char*> bad[] = {
      {"SHARDWIRE_TIMEOUT_S", "0"},       {"SHARDWIRE_TIMEOUT_S", "-5"},
      {"SHARDWIRE_TIMEOUT_S", "soon"},    {"SHARDWIRE_TIMEOUT_S", "1e300"},
      {"SHARDWIRE_TIMEOUT_S", "nan"},     {"SHARDWIRE_SPIN_US", "10us"},
      {"SHARDWIRE_RECORDED_OPS", "many"}, {"SHARDWIRE_RECORDED_OPS", "-1"},
      {"TORCH_FR_BUFFER_SIZE", "2e3"},    {"SHARDWIRE_STATUS", "yes"},
      {"SHARDWIRE_TCP_CRC", "on"},        {"SHARDWIRE_RING_BYTES", "1"},
      {"SHARDWIRE_RING_BYTES", "2T"},     {"SHARDWIRE_RING_BYTES", "99999999999999999999"},
      {"SHARDWIRE_RING_BYTES", "-1"},     {"SHARDWIRE_RING_BYTES", "99999999999G"},
      {"SHARDWIRE_INLINE_BYTES", "1G"},   {"SHARDWIRE_ORDINARY_PATH", "Staged"},
      {"SHARDWIRE_HEAP_BYTES", "5"},      {"SHARDWIRE_STAGING_BYTES", "1M"},
      {"SHARDWIRE_CHECK", "all"},         {"SHARDWIRE_LINKS", "late"},
      {"SHARDWIRE_TCP_TLS", "1"},         {"SHARDWIRE_RDMA_GID_INDEX", "one"},
      {"SHARDWIRE_HEAP_BYTES", "1e9"},    {"NCCL_IB_GID_INDEX", "256"},
      {"NCCL_IB_GID_INDEX", "x"}};
  for (const auto& [name, value] : bad) {
    clear();
    ::setenv(name, value, 1);
    const auto options = Options::fromEnvironment();
    ASSERT_FALSE(options.isOk()) << name << "=" << value;
    EXPECT_EQ(options.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(options.status().message().find(std::string(name) + "=" + value), std::string::npos)
        << options.status().message();
  }
}

}  // namespace
}  // namespace shardwire
