// Errors of devices, and limits of the system: injected into a real device's table of verbs, or real. First failed
// completions and memory that cannot be locked, then the limit of a user, then registrations in a steady state, and at
// last the power cut of a machine.
#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>

#include "backend/bootstrap/connect.h"
#include "shardwire/stores.h"
#include "tests/backend/transport/rdma/rdma_pair.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/launched_ranks.h"

namespace shardwire::testing {
namespace {

using internal::Connection;
using internal::FetchCount;
using internal::Lane;
using internal::MemoryRun;
using internal::Reach;
using internal::RemoteAddress;
using internal::VerbsApi;

class RdmaFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto api = VerbsApi::load();
    if (!api.isOk()) {
      GTEST_SKIP() << api.status().message();
    }
    real_ = **api;
    const auto ports = internal::openRdmaPorts(real_, Options{});
    if (!ports.isOk()) {
      GTEST_SKIP() << "no RDMA device: " << ports.status().message();
    }
  }
  static VerbsApi real_;
};
VerbsApi RdmaFaults::real_;

std::atomic<int> failSends{0};  // this status for the next completed send

VerbsApi withFailingSends(const VerbsApi& real) {
  static const VerbsApi* underneath = nullptr;
  underneath = &real;
  VerbsApi api = real;
  api.pollCq = [](ibv_cq* cq, int most, ibv_wc* completions) {
    const int number = underneath->pollCq(cq, most, completions);
    for (int i = 0; i < number; ++i) {
      const bool isSend = !internal::WorkId::decode(completions[i].wr_id).isReceive;
      if (const int status = isSend ? failSends.exchange(0) : 0; status != 0) {
        completions[i].status = static_cast<ibv_wc_status>(status);
        completions[i].vendor_err = 0x81;
      }
    }
    return number;
  };
  return api;
}

TEST_F(RdmaFaults, AFailedCompletionNamesPeerPortStatusAndCause) {
  const std::pair<ibv_wc_status, const char*> cases[] = {{IBV_WC_RETRY_EXC_ERR, "died or cannot be reached"},
                                                         {IBV_WC_REM_ACCESS_ERR, "withdrew memory"},
                                                         {IBV_WC_LOC_PROT_ERR, "freed while it was in use"},
                                                         {IBV_WC_FATAL_ERR, "dmesg"}};
  for (const auto& [status, words] : cases) {
    const VerbsApi failing = withFailingSends(real_);
    RdmaPair pair(failing, real_);
    ASSERT_TRUE(pair.isJoined()) << pair.ends[0].failure.message() << pair.ends[1].failure.message();
    Connection& connection = *pair.ends[0].connection;
    ASSERT_TRUE(connection.health().isOk());
    failSends = status;
    for (int i = 0; i < 40; ++i) {  // enough for a requested completion
      ASSERT_FALSE(connection.reserve(Lane::kControl, 8, 8).empty());
      connection.commit(Lane::kControl, 8);
    }
    ASSERT_TRUE(pair.pollUntil([&] { return !connection.health().isOk(); }));
    const std::string text = connection.health().message();
    EXPECT_EQ(connection.health().code(), StatusCode::kPeerFailed);
    for (const char* part :
         {"rank 1 (in this process)", "rxe", "vendor error 0x81", real_.wcStatusStr(status), words}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
}

std::atomic<bool> refuseRegistrations{false};

VerbsApi withRefusals(const VerbsApi& real) {
  static const VerbsApi* underneath = nullptr;
  underneath = &real;
  VerbsApi api = real;
  api.regMr = [](ibv_pd* pd, void* bytes, std::size_t size, int access) -> ibv_mr* {
    if (refuseRegistrations) {
      errno = ENOMEM;
      return nullptr;
    }
    return underneath->regMr(pd, bytes, size, access);
  };
  return api;
}

TEST_F(RdmaFaults, WithoutMemoryToLockTheOwnerStagesAndTheRequesterSaysWhy) {
  const VerbsApi refusing = withRefusals(real_);
  RdmaPair pair(refusing, refusing);
  ASSERT_TRUE(pair.isJoined());
  std::vector<std::byte> theirs(1 << 20, std::byte{7});
  std::vector<std::byte> mine(1 << 20);
  RemoteAddress address;
  refuseRegistrations = true;
  EXPECT_EQ(pair.ends[1].connection->expose(theirs.data(), theirs.size(), &address), Reach::kNone);
  refuseRegistrations = false;
  ASSERT_EQ(pair.ends[1].connection->expose(theirs.data(), theirs.size(), &address), Reach::kFetch);
  refuseRegistrations = true;
  FetchCount count;
  pair.fetch(address, mine.data(), mine.size(), &count);
  refuseRegistrations = false;
  const Status health = pair.ends[0].connection->health();
  EXPECT_EQ(health.code(), StatusCode::kSystem);
  EXPECT_EQ(count.pending, 1U);
  for (const char* words : {"rank 0 cannot fetch from rank 1", "memlock", "ENOMEM"}) {
    EXPECT_NE(health.message().find(words), std::string::npos) << health.message();
  }
  EXPECT_TRUE(pair.ends[1].connection->health().isOk());
}

TEST_F(RdmaFaults, ARingThatCannotBeLockedIsAnErrorOnBothSides) {
  const VerbsApi refusing = withRefusals(real_);
  refuseRegistrations = true;
  RdmaPair pair(refusing, real_);
  refuseRegistrations = false;
  ASSERT_FALSE(pair.isJoined());
  EXPECT_NE(pair.ends[0].failure.message().find("memlock"), std::string::npos) << pair.ends[0].failure.message();
  EXPECT_NE(pair.ends[1].failure.message().find("rank 0"), std::string::npos) << pair.ends[1].failure.message();
  EXPECT_NE(pair.ends[1].failure.message().find("memlock"), std::string::npos) << pair.ends[1].failure.message();
}

// The real limit, for a user other than root.
TEST_F(RdmaFaults, TheMemlockLimitIsReported) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can become another user with a limit of its own";
  }
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const rlimit limit{1 << 20, 1 << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ASSERT_EQ(::setuid(65534), 0);
    Options options;
    options.transports = "rdma";
    const auto peers =
        internal::connectPeers(store, rank, 2, options, Clock::now() + std::chrono::seconds(20), "memlock");
    ASSERT_FALSE(peers.isOk());
    EXPECT_NE(peers.status().message().find("memlock"), std::string::npos) << peers.status().message();
  });
}

TEST_F(RdmaFaults, ASteadyStateRegistersNothing) {
  RdmaPair pair(real_, real_);
  ASSERT_TRUE(pair.isJoined());
  auto theirs = internal::allocateShared(1 << 20);
  auto mine = internal::allocateShared(1 << 20);
  ASSERT_TRUE(theirs.isOk() && mine.isOk());
  std::uint64_t before = 0;
  for (int i = 0; i < 50; ++i) {
    RemoteAddress address;
    ASSERT_EQ(pair.ends[1].connection->expose(theirs->get(), 1 << 20, &address), Reach::kFetch);
    FetchCount count;
    pair.fetch(address, mine->get(), 1 << 20, &count);
    ASSERT_TRUE(pair.pollUntil([&] { return count.pending == 0; })) << pair.ends[0].connection->health().message();
    pair.ends[1].connection->conceal(address);
    std::uint64_t now = 0;
    for (const RdmaEnd& end : pair.ends) {
      now += static_cast<const internal::RdmaWire&>(*end.wire).numRegistered();
    }
    EXPECT_TRUE(i == 0 || now == before) << i;
    before = now;
  }
}

// Rank 1's machine loses power while rank 0 fetches from rank 1 or is idle; each test needs two separate machines
// (tests/rig/run_rdma.py).
class RdmaPowerCut : public ::testing::Test {
 protected:
  void run(bool isBusy) {
    if (!areRanksLaunched() || numLaunchedRanks() != 2) {
      GTEST_SKIP() << "needs two machines: tests/rig/run_rdma.py";
    }
    auto store = makeStore();
    const Rank rank = launchedRank();
    Options options;
    options.transports = "rdma";
    auto peers = internal::connectPeers(*store, rank, 2, options, Clock::now() + std::chrono::seconds(30), "power cut");
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
    internal::Wire& wire = *peers->wires.at(0);
    rank == 1 ? die(connection, wire) : survive(connection, wire, isBusy);
  }

 private:
  struct Exposed {
    std::uint32_t space;
    std::uint64_t address;
  };
  static constexpr std::size_t kBytes = std::size_t{8} << 20;

  void die(Connection& connection, internal::Wire& wire) {
    std::vector<std::byte> memory(kBytes);
    RemoteAddress address;
    ASSERT_EQ(connection.expose(memory.data(), kBytes, &address), Reach::kFetch);
    const Exposed exposed{address.space, address.value};
    auto room = connection.reserve(Lane::kControl, sizeof(exposed), sizeof(exposed));
    std::memcpy(room.data(), &exposed, sizeof(exposed));
    connection.commit(Lane::kControl, sizeof(exposed));
    const Deadline from = Clock::now() + std::chrono::milliseconds(500);
    while (Clock::now() < from) {
      wire.poll();
    }
    static_cast<void>(::system("node-die"));
    while (true) {
      wire.poll();
    }
  }

  void survive(Connection& connection, internal::Wire& wire, bool isBusy) {
    std::span<const std::byte> frame;
    while ((frame = connection.peek(Lane::kControl)).empty()) {
      ASSERT_TRUE(connection.health().isOk()) << connection.health().message();
      wire.poll();
    }
    Exposed exposed;
    std::memcpy(&exposed, frame.data(), sizeof(exposed));
    std::vector<std::byte> copy(kBytes);
    FetchCount count;
    const MemoryRun all{copy.data(), exposed.address, kBytes};
    Deadline lastSign = Clock::now();
    const Deadline until = lastSign + std::chrono::seconds(30);
    std::uint32_t fetched = 0;
    while (connection.health().isOk() && Clock::now() < until) {
      if (isBusy && count.pending == 0 && connection.fetch(exposed.space, {&all, 1}, &count)) {
        ++fetched;
      }
      if (wire.poll()) {
        lastSign = Clock::now();
      }
    }
    const std::chrono::duration<double> silent = Clock::now() - lastSign;
    const Status health = connection.health();
    ASSERT_EQ(health.code(), StatusCode::kPeerFailed);
    EXPECT_NE(health.message().find("rank 1"), std::string::npos) << health.message();
    EXPECT_NE(health.message().find("died or cannot be reached"), std::string::npos) << health.message();
    EXPECT_LT(silent.count(), 10) << health.message();  // not the timeout of 30 s; the line below prints how soon,
                                                        // since an emulated machine has no independent clock
    std::printf("noticed %.2f s after the last sign of life (%u fetches): %s\n", silent.count(), fetched,
                health.message().c_str());
    EXPECT_TRUE(connection.stopFetches());
  }
};

TEST_F(RdmaPowerCut, IsNoticedWhileFetching) {
  run(true);
}

TEST_F(RdmaPowerCut, IsNoticedWhileIdle) {
  run(false);
}

}  // namespace
}  // namespace shardwire::testing
