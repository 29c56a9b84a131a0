// Ranks whose processes can make no Unix socket and no memory file, as in some sandboxes: shared memory does not join
// such ranks, and other transports do all the same.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/bootstrap/address.h"
#include "backend/bootstrap/connect.h"
#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using testing::runRanksAsProcesses;

// From here on this process, with all threads, gets EPERM for memfd_create() and for sockets of the Unix family.
void forbidSharedMemory() {
  constexpr auto kDenied = static_cast<std::uint32_t>(SECCOMP_RET_ERRNO) | EPERM;
  std::array<sock_filter, 7> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 2),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),  // the low half, on little-endian machines
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, kDenied),
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
  ASSERT_EQ(::socket(AF_UNIX, SOCK_STREAM, 0), -1);
  ASSERT_EQ(::syscall(SYS_memfd_create, "x", 0), -1);
}

void expectSum(Communicator& group) {
  std::int64_t value = group.rank() + 1;
  auto work = group.allReduce(TensorView::contiguous(&value, DType::kInt64, {1}), ReduceOp::kSum);
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status done = (*work)->wait();
  ASSERT_TRUE(done.isOk()) << done.message();
  EXPECT_EQ(value, group.worldSize() * (group.worldSize() + 1) / 2);
}

Options withoutShm() {
  Options options;
  options.transports = "^shm,rdma,mpi";
  options.jobToken = "a secret";
  return options;
}

// Rank 1 cannot share memory; `areAll`: no rank can.
void joinOverTcp(const Options& options, bool areAll) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    if (rank == 1 || areAll) {
      ASSERT_NO_FATAL_FAILURE(forbidSharedMemory());
    }
    auto group = Communicator::create(store, rank, 3, options, "g");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    for (int round = 0; round < 3; ++round) {
      expectSum(**group);
    }
  });
}

TEST(WithoutSharedMemory, RanksThatExcludeItAreJoinedOverTcp) {
  joinOverTcp(withoutShm(), true);
  joinOverTcp(withoutShm(), false);
}

TEST(WithoutSharedMemory, RanksThatExcludeItAreJoinedWhenAnOperationNeedsIt) {
  Options options = withoutShm();
  options.links = LinksWhen::kLazy;
  joinOverTcp(options, true);
}

void expectErrorOnAll(const Options& options, StatusCode code, const std::vector<std::string>& words) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    if (rank == 1) {
      ASSERT_NO_FATAL_FAILURE(forbidSharedMemory());
    }
    const auto peers = connectPeers(store, rank, 2, options, Clock::now() + std::chrono::seconds(20), "g");
    ASSERT_FALSE(peers.isOk());
    EXPECT_EQ(peers.status().code(), code) << peers.status().message();
    for (const std::string& word : words) {
      EXPECT_NE(peers.status().message().find(word), std::string::npos)
          << "no '" << word << "' in: " << peers.status().message();
    }
  });
}

// No user should get slower transports without notice.
TEST(WithoutSharedMemory, IsAnErrorWhereItIsNotExcluded) {
  expectErrorOnAll({}, StatusCode::kSystem, {"rank 1 could not start: ", "SHARDWIRE_TRANSPORTS=^shm on all ranks"});
}

// Ranks of one user on one host have a secret outside the store, from the Unix sockets or from the user.
TEST(WithoutSharedMemory, NeedsAJobToken) {
  Options options = withoutShm();
  options.jobToken.clear();
  expectErrorOnAll(options, StatusCode::kUnsupported, {"rank 1 (pid", "no Unix socket", "SHARDWIRE_JOB_TOKEN"});
}

// Counts the ranks that have seen rank 2 alive. A rank looks at the others again and again, and each look begins with
// the failure board's entry: at the third look behind rank 2's address two looks at rank 2 are over, the first of which
// requested a connection and the second of which found the connection made.
class WatchingStore final : public Store {
 public:
  WatchingStore(Store& store, std::atomic<int>& numWatching) : store_(store), numWatching_(numWatching) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(key, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    auto value = store_.get(key, deadline);
    isPublished_ |= key == addressKey(2) && value.isOk();
    if (isPublished_ && key == "shardwire/failed" && ++numLooks_ == 3) {
      ++numWatching_;
    }
    return value;
  }

 private:
  Store& store_;
  std::atomic<int>& numWatching_;
  bool isPublished_ = false;
  int numLooks_ = 0;
};

// No Unix socket shows that the rank lives: the other ranks watch the rank's TCP port.
TEST(WithoutSharedMemory, ADeathWhileTheGroupIsMadeIsNoticed) {
  MemoryStore store;
  testing::SharedValue<std::atomic<int>> numWatching;
  const Options options = withoutShm();
  runRanksAsProcesses(
      3,
      [&](Rank rank) {
        ASSERT_NO_FATAL_FAILURE(forbidSharedMemory());
        if (rank == 2) {
          std::thread([&] {
            static_cast<void>(connectPeers(store, rank, 4, options, Clock::now() + std::chrono::seconds(20), "g"));
          }).detach();
          while (*numWatching < 2) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          ::kill(::getpid(), SIGKILL);
        }
        WatchingStore watching(store, *numWatching);
        const auto peers = connectPeers(watching, rank, 4, options, Clock::now() + std::chrono::seconds(20),
                                        "g");  // rank 3 never comes
        ASSERT_FALSE(peers.isOk());
        EXPECT_EQ(peers.status().code(), StatusCode::kPeerFailed) << peers.status().message();
      },
      testing::kRankTimeLimit, {2});
}

}  // namespace
}  // namespace shardwire::internal
