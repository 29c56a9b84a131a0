// The contract over RDMA. Needs a device: tests/rig gives one to any machine.
#include "backend/transport/rdma/rdma_endpoint.h"
#include "shardwire/communicator.h"
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
  return {name, forked, options, true};
}

std::vector<TransportFixture> fixtures() {
  if (!whyNoDevice().empty()) {
    return {};
  }
  Options smallRings = overRdma();
  smallRings.ringBytes = std::size_t{16} << 10;
  smallRings.inlineBytes = 0;
  return {fixture("Threads", false, overRdma()), fixture("Processes", true, overRdma()),
          fixture("SmallRings", true, smallRings)};
}

INSTANTIATE_TEST_SUITE_P(Rdma, TransportContract, ::testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Rdma, WireContract, ::testing::ValuesIn(fixtures()),
                         [](const auto& info) { return info.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WireContract);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportContract);

TEST(RdmaTransport, HasADevice) {
  const std::string why = whyNoDevice();
  if (!why.empty()) {
    GTEST_SKIP() << "no RDMA device: " << why << " (tests/rig/run_rdma.py runs this in a machine that has one)";
  }
}

// A storage that is always alive and always the same.
const StorageWatch kEternal = {.retainWeak = [](const void* storage) { return const_cast<void*>(storage); },
                               .isExpired = [](void*) { return false; },
                               .releaseWeak = [](void*) {}};

// "..., 17 registrations so far"
int numRegistrations(const Communicator& group) {
  const std::string text = group.describeTransports();
  const std::size_t end = text.find(" registrations so far");
  EXPECT_NE(end, std::string::npos) << text;
  return std::stoi(text.substr(text.rfind(' ', end - 1) + 1));
}

// Each rank gives the other a tensor in ordinary memory, again and again.
TEST(RdmaSteadyState, ABoundOpAndAKnownStorageRegisterOnce) {
  if (const std::string why = whyNoDevice(); !why.empty()) {
    GTEST_SKIP() << "no RDMA device: " << why;
  }
  constexpr std::int64_t kElems = 1 << 18;
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    Options options = overRdma();
    options.storages = &kEternal;
    auto group = Communicator::create(store, rank, 2, options, "steady");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    LocalSpec spec;
    spec.tensors.push_back({"", Dims{2 * kElems}, DType::kFloat32, ReduceOp::kNone});
    spec.inputs.push_back({0, {kElems}, {{{{rank * kElems}, {kElems}}, {0}}}, 0});
    spec.outputs.push_back({0, {kElems}, {{{{(1 - rank) * kElems}, {kElems}}, {0}}}, 0});
    auto op = (*group)->compileOp(spec, std::nullopt);
    ASSERT_TRUE(op.isOk()) << op.status().message();
    std::vector<float> mine(kElems, static_cast<float>(rank + 1));
    std::vector<float> theirs(kElems);
    TensorView input = TensorView::contiguous(mine.data(), DType::kFloat32, {kElems});
    TensorView output = TensorView::contiguous(theirs.data(), DType::kFloat32, {kElems});
    const auto check = [&](const Result<WorkPtr>& work) {
      ASSERT_TRUE(work.isOk()) << work.status().message();
      ASSERT_TRUE((*work)->wait().isOk());
      EXPECT_EQ(theirs, std::vector<float>(kElems, static_cast<float>(2 - rank)));
      std::fill(theirs.begin(), theirs.end(), 0.0F);
    };
    {
      auto bound = (*op)->bind({&input, 1}, {&output, 1}, nullptr, std::nullopt);
      ASSERT_TRUE(bound.isOk()) << bound.status().message();
      check((*bound)->run());
      const int after = numRegistrations(**group);
      for (int i = 0; i < 20; ++i) {
        check((*bound)->run());
      }
      EXPECT_EQ(numRegistrations(**group), after) << "bound";
    }
    input.storage = &mine;
    output.storage = &theirs;
    for (int i = 0; i < 3; ++i) {  // the first run may find memory that the bound op has not released yet
      check((*op)->run({&input, 1}, {&output, 1}, nullptr, std::nullopt, nullptr));
    }
    const int after = numRegistrations(**group);
    for (int i = 0; i < 20; ++i) {
      check((*op)->run({&input, 1}, {&output, 1}, nullptr, std::nullopt, nullptr));
    }
    EXPECT_EQ(numRegistrations(**group), after) << "known storages";
    // And no registration of unknown memory is kept.
    input.storage = output.storage = nullptr;
    check((*op)->run({&input, 1}, {&output, 1}, nullptr, std::nullopt, nullptr));
  });
}

}  // namespace
}  // namespace shardwire::testing
