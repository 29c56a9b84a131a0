// The contract over RDMA. Needs a device: tests/rig gives one to any machine.
#include "backend/transport/rdma/rdma_endpoint.h"
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"

namespace shardwire::testing {
namespace {

Options overRdma() {
  Options options;
  options.transports = "rdma";
  return options;
}

// Empty: there is a device.
std::string whyNoDevice() {
  const Options options = overRdma();
  const auto endpoint = internal::makeRdmaEndpoint({.rank = 0, .worldSize = 2, .host = "here", .options = &options});
  return endpoint.isOk() ? std::string() : endpoint.status().message();
}

TransportFixture fixture(const char* name, bool forked, const Options& options) {
  // An emulated machine takes long to end a process.
  return {name, forked, options, true, std::chrono::milliseconds(1000)};
}

std::vector<TransportFixture> fixtures() {
  if (!whyNoDevice().empty()) {
    return {};
  }
  Options smallRings = overRdma();
  smallRings.ringBytes = std::size_t{16} << 10;
  smallRings.inlineBytes = 0;
  return {fixture("Threads", false, overRdma()), fixture("Processes", true, overRdma()), fixture("SmallRings", true, smallRings)};
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportContract, ::testing::ValuesIn(fixtures()), [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Rdma, WireContract, ::testing::ValuesIn(fixtures()), [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContract);

TEST(RdmaTransport, HasADevice) {
  const std::string why = whyNoDevice();
  if (!why.empty()) {
    GTEST_SKIP() << "no RDMA device: " << why << " (tests/rig/run_rdma.py runs this in a machine that has one)";
  }
}

}  // namespace
}  // namespace shardwire::testing
