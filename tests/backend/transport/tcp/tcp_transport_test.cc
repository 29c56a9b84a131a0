// The contract over TCP, and what is special to it.
#include "tests/backend/transport/contract.h"
#include "tests/backend/transport/contract_fetch.h"

namespace shardwire::testing {
namespace {

Options overTcp() {
  Options options;
  options.transports = "tcp";
  options.socketIfname = "lo";
  return options;
}

Options smallRings() {
  Options options = overTcp();
  options.ringBytes = std::size_t{16} << 10;
  options.inlineBytes = 0;
  return options;
}

const auto kFixtures =
    ::testing::Values(TransportFixture{"Threads", false, overTcp(), true}, TransportFixture{"Processes", true, overTcp(), true},
                      TransportFixture{"SmallRings", true, smallRings(), true});
std::string nameOf(const ::testing::TestParamInfo<TransportFixture>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Tcp, TransportContract, kFixtures, nameOf);
INSTANTIATE_TEST_SUITE_P(Tcp, WireContract, kFixtures, nameOf);

}  // namespace
}  // namespace shardwire::testing
