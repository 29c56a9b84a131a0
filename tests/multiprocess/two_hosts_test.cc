// Groups over two hosts: network namespaces of this machine, joined by a virtual cable. Shared memory does not reach
// across.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "backend/bootstrap/connect.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/net_namespaces.h"

namespace shardwire::testing {
namespace {

using std::chrono::seconds;

class TwoHosts : public ::testing::Test {
 protected:
  // Runs `function` on ranks of which the first half are on host 0.
  void run(NetNamespaces::Addresses addresses, int numRanks, const std::function<void(Rank, Store&)>& function) {
    std::string whyNot;
    hosts_ = NetNamespaces::create(addresses, &whyNot);
    if (hosts_ == nullptr) {
      GTEST_SKIP() << "no two hosts here: " << whyNot;
    }
    MemoryStore store;
    runRanksAsProcesses(numRanks, [&](Rank rank) {
      hosts_->enter(rank < numRanks / 2 ? 0 : 1);
      function(rank, store);
    });
  }

  std::unique_ptr<NetNamespaces> hosts_;
};

Options testOptions() {
  Options options;
  options.transports = "shm,tcp";  // a machine with an RDMA device would use RDMA
  options.timeout = seconds(30);
  return options;
}

std::unique_ptr<Communicator> join(Store& store, Rank rank, int n) {
  auto group = Communicator::create(store, rank, n, testOptions(), "two hosts");
  EXPECT_TRUE(group.isOk()) << group.status().message();
  return group.isOk() ? std::move(*group) : nullptr;
}

Status wait(Result<WorkPtr> work) {
  return work.isOk() ? (*work)->wait() : work.status();
}

void expectOk(const Status& status) {
  ASSERT_TRUE(status.isOk()) << status.message();
}

// All_reduce of `count` numbers: short tensors travel in frames, long tensors are fetched.
void checkAllReduce(Communicator& group, Rank rank, int n, std::size_t count) {
  std::vector<std::int64_t> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<std::int64_t>(i) * (rank + 1);
  }
  expectOk(wait(group.allReduce(
      TensorView::contiguous(values.data(), DType::kInt64, {static_cast<std::int64_t>(count)}), ReduceOp::kSum)));
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(values[i], static_cast<std::int64_t>(i) * n * (n + 1) / 2) << i;
  }
}

// Rows in, columns out: every rank has something for every other.
void checkReshape(Communicator& group, Rank rank, int n, std::int64_t part) {
  const std::int64_t whole = part * n;
  const std::int64_t from = part * rank;
  LocalSpec spec;
  spec.tensors.push_back({"", Dims{whole, whole}, DType::kInt32, ReduceOp::kNone});
  spec.inputs.push_back({0, {part, whole}, {{{{from, 0}, {part, whole}}, {0, 0}}}, 0});
  spec.outputs.push_back({0, {whole, part}, {{{{0, from}, {whole, part}}, {0, 0}}}, 0});
  auto op = group.compileOp(spec);
  ASSERT_TRUE(op.isOk()) << op.status().message();
  std::vector<std::int32_t> in(static_cast<std::size_t>(part * whole));
  std::vector<std::int32_t> out(in.size(), -1);
  std::iota(in.begin(), in.end(), static_cast<std::int32_t>(from * whole));
  const TensorView inputs[] = {TensorView::contiguous(in.data(), DType::kInt32, {part, whole})};
  const TensorView outputs[] = {TensorView::contiguous(out.data(), DType::kInt32, {whole, part})};
  expectOk(wait((*op)->run(inputs, outputs)));
  for (std::int64_t row = 0; row < whole; ++row) {
    for (std::int64_t column = 0; column < part; ++column) {
      ASSERT_EQ(out[static_cast<std::size_t>(row * part + column)], row * whole + from + column)
          << row << ", " << column;
    }
  }
}

void checkSendRecv(Communicator& group, Rank rank, int n, std::int64_t bytes) {
  std::vector<std::uint8_t> mine(static_cast<std::size_t>(bytes), static_cast<std::uint8_t>(rank + 1));
  std::vector<std::uint8_t> theirs(mine.size());
  auto sent = group.send(TensorView::contiguous(mine.data(), DType::kUInt8, {bytes}), (rank + 1) % n, 5);
  auto received = group.recv(TensorView::contiguous(theirs.data(), DType::kUInt8, {bytes}), (rank + n - 1) % n, 5);
  expectOk(wait(std::move(received)));
  expectOk(wait(std::move(sent)));
  ASSERT_EQ(theirs, std::vector<std::uint8_t>(mine.size(), static_cast<std::uint8_t>((rank + n - 1) % n + 1)));
}

void checkEverything(Rank rank, int n, Store& store) {
  const auto group = join(store, rank, n);
  ASSERT_NE(group, nullptr);
  for (const std::size_t count : {1, 1000, 300000}) {
    checkAllReduce(*group, rank, n, count);
  }
  checkReshape(*group, rank, n, 16);
  checkReshape(*group, rank, n, 2048 / n);
  checkSendRecv(*group, rank, n, 8);
  checkSendRecv(*group, rank, n, 3 << 20);
  expectOk(wait(group->barrier()));
}

TEST_F(TwoHosts, AreJoinedByTcp) {
  run(NetNamespaces::Addresses::kIpv4, 2, [](Rank rank, Store& store) {
    auto peers = internal::connectPeers(store, rank, 2, testOptions(), Clock::now() + seconds(20), "two hosts");
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    EXPECT_STREQ(peers->connections[static_cast<std::size_t>(1 - rank)]->transportName(), "tcp");
    EXPECT_EQ(peers->hosts, (std::vector<std::int32_t>{0, 1}));
  });
}

TEST_F(TwoHosts, RunEverythingOverIpv4) {
  run(NetNamespaces::Addresses::kIpv4, 2, [](Rank rank, Store& store) { checkEverything(rank, 2, store); });
}

TEST_F(TwoHosts, RunEverythingOverIpv6) {
  run(NetNamespaces::Addresses::kIpv6, 2, [](Rank rank, Store& store) { checkEverything(rank, 2, store); });
}

TEST_F(TwoHosts, RunEverythingOverLinkLocalAddresses) {
  run(NetNamespaces::Addresses::kLinkLocalOnly, 2, [](Rank rank, Store& store) { checkEverything(rank, 2, store); });
}

// Shared memory inside, tcp across.
TEST_F(TwoHosts, OfTwoRanksEachRunEverything) {
  run(NetNamespaces::Addresses::kIpv4, 4, [](Rank rank, Store& store) { checkEverything(rank, 4, store); });
}

// Operations until one fails; the cable is pulled in between.
void pullCable(const NetNamespaces& hosts, Rank rank, Store& store, std::size_t numBytes) {
  const auto group = join(store, rank, 2);
  ASSERT_NE(group, nullptr);
  expectOk(wait(group->barrier()));
  std::vector<std::uint8_t> bytes(numBytes);
  const auto view = TensorView::contiguous(bytes.data(), DType::kUInt8, {static_cast<std::int64_t>(numBytes)});
  Status status;
  const Deadline pulled = Clock::now() + std::chrono::milliseconds(100);
  for (bool plugged = true; status.isOk() && Clock::now() < pulled + seconds(40);) {
    auto work = rank == 0 ? group->send(view, 1, 0) : group->recv(view, 0, 0);
    if (rank == 0 && plugged && Clock::now() >= pulled) {
      hosts.setCable(false);
      plugged = false;
    }
    status = wait(std::move(work));
  }
  EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
  EXPECT_NE(status.message().find(fmt::format("rank {} (pid", 1 - rank)), std::string::npos) << status.message();
  // Either the kernel's probes or shardwire's own look found the failure.
  const bool saysWhy = status.message().find("does not answer any more") != std::string::npos ||
                       status.message().find("acknowledged nothing for") != std::string::npos;
  EXPECT_TRUE(saysWhy) << status.message();
  EXPECT_LT(Clock::now() - pulled, seconds(20)) << "that is not soon";
}

TEST_F(TwoHosts, ACablePulledInALongTransferIsAnErrorThatNamesThePeer) {
  run(NetNamespaces::Addresses::kIpv4, 2,
      [&](Rank rank, Store& store) { pullCable(*hosts_, rank, store, std::size_t{64} << 20); });
}

TEST_F(TwoHosts, ACablePulledAmongShortMessagesIsAnErrorThatNamesThePeer) {
  run(NetNamespaces::Addresses::kIpv4, 2, [&](Rank rank, Store& store) { pullCable(*hosts_, rank, store, 8); });
}

}  // namespace
}  // namespace shardwire::testing
