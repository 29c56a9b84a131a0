#include "backend/bootstrap/select_transport.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

RankAddress rankOn(const std::string& host) {
  RankAddress address;
  address.bootId = "boot of " + host;
  address.host = host;
  address.uid = 1000;
  return address;
}

std::string allReach(TransportKind) {
  return {};
}

TEST(ParseTransports, TakesNamesAndExclusions) {
  EXPECT_EQ(*parseTransports(""), (AllowedTransports{true, true, true, true}));
  EXPECT_EQ(*parseTransports("shm,tcp"), (AllowedTransports{true, false, false, true}));
  EXPECT_EQ(*parseTransports("rdma"), (AllowedTransports{false, true, false, false}));
  EXPECT_EQ(*parseTransports("^tcp"), (AllowedTransports{true, true, true, false}));
  EXPECT_EQ(*parseTransports("^shm,mpi"), (AllowedTransports{false, true, false, true}));
}

TEST(ParseTransports, RefusesTheRestByName) {
  for (const char* text : {"ucx", "shm,", "shm,,tcp", ",", "^", "^shm,rdma,mpi,tcp", "shm,^tcp", " shm"}) {
    const auto allowed = parseTransports(text);
    ASSERT_EQ(allowed.isOk(), std::string_view(text) == "shm,") << text;  // a last comma does no harm
    if (!allowed.isOk()) {
      EXPECT_EQ(allowed.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(allowed.status().message().find(std::string("SHARDWIRE_TRANSPORTS=") + text), std::string::npos);
    }
  }
}

TEST(ChooseTransports, PrefersSharedMemoryOnOneHost) {
  const auto choice = chooseTransports(0, rankOn("a"), 1, rankOn("a"), allReach);
  EXPECT_EQ(choice.candidates,
            (std::vector{TransportKind::kShm, TransportKind::kRdma, TransportKind::kMpi, TransportKind::kTcp}));
  EXPECT_EQ(reasons(choice), "");
}

TEST(ChooseTransports, SaysWhyTheFasterOnesDoNot) {
  RankAddress far = rankOn("b");
  far.transports[1].whyNot = "no RDMA device";
  const auto choice = chooseTransports(0, rankOn("a"), 5, far, [](TransportKind kind) {
    return std::string(kind == TransportKind::kMpi ? "they run in different MPI jobs" : "");
  });
  EXPECT_EQ(choice.candidates, std::vector{TransportKind::kTcp});
  EXPECT_EQ(reasons(choice),
            "shm: they run on different hosts (a and b; boot ids boot of a and boot of b); rdma: rank 5: no RDMA "
            "device; mpi: they run in "
            "different MPI jobs");
  EXPECT_EQ(reasons(choice, static_cast<int>(TransportKind::kRdma)),
            "shm: they run on different hosts (a and b; boot ids boot of a and boot of b)");
}

// A Unix socket does not reach from one kernel to the other, whatever host id the user gives.
TEST(ChooseTransports, ANamedHostOfSeveralKernelsHasNoSharedMemory) {
  RankAddress here = rankOn("named");
  RankAddress there = here;
  here.kernel = "boot 1";
  there.kernel = "boot 2";
  const auto choice = chooseTransports(0, here, 1, there, allReach);
  EXPECT_EQ(choice.candidates, (std::vector{TransportKind::kRdma, TransportKind::kMpi, TransportKind::kTcp}));
  EXPECT_NE(reasons(choice).find("SHARDWIRE_HOST_ID calls their hosts one"), std::string::npos) << reasons(choice);
  EXPECT_TRUE(chooseTransports(0, here, 1, here, allReach).candidates.front() == TransportKind::kShm);
  there.kernel = "";  // the kernels may be one
  EXPECT_TRUE(chooseTransports(0, here, 1, there, allReach).candidates.front() == TransportKind::kShm);
}

TEST(ChooseTransports, BothRanksSayTheSame) {
  RankAddress a = rankOn("a");
  RankAddress b = rankOn("a");
  b.uid = 7;
  a.transports[1].whyNot = "no device";
  b.transports[1].whyNot = "no library";
  const auto seenByA = chooseTransports(2, a, 3, b, allReach);
  const auto seenByB = chooseTransports(3, b, 2, a, allReach);
  EXPECT_EQ(seenByA.candidates, seenByB.candidates);
  EXPECT_EQ(seenByA.whyNot, seenByB.whyNot);
  EXPECT_EQ(seenByA.whyNot[1], "rank 2: no device");
}

TEST(NumberHosts, CountsKernelsAndNetworkNamespaces) {
  RankAddress inPod = rankOn("a");
  inPod.networkNamespace = 9;
  EXPECT_EQ(numberHosts({rankOn("b"), rankOn("a"), inPod, rankOn("b"), inPod}),
            (std::vector<std::int32_t>{0, 1, 2, 0, 2}));
}

}  // namespace
}  // namespace shardwire::internal
