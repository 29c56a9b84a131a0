// The contract over shared memory, and tests of shared memory alone. First files and descriptors: no named file, no
// descriptor left, links shared by groups, remains of groups. Then two requests for one link, staged and cross-memory
// paths, withdrawn memory, and two groups of the same ranks.
#include <dirent.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backend/transport/shm/shm_fabric.h"
#include "tests/backend/transport/contract.h"
#include "tests/support/dead_owners.h"

namespace shardwire::testing {
namespace {

Options staged() {
  Options options;
  options.ordinaryPath = OrdinaryPath::kStaged;
  return options;
}

Options smallRings() {
  Options options;
  options.ringBytes = std::size_t{16} << 10;
  options.inlineBytes = 0;
  return options;
}

INSTANTIATE_TEST_SUITE_P(Shm, TransportContract,
                         ::testing::Values(TransportFixture{"Threads", false, Options{}},
                                           TransportFixture{"Processes", true, Options{}},
                                           TransportFixture{"StagedProcesses", true, staged()},
                                           TransportFixture{"SmallRings", true, smallRings()}),
                         [](const auto& info) { return info.param.name; });

std::vector<std::string> listFolder(const char* path, const std::string& prefix) {
  std::vector<std::string> names;
  DIR* folder = ::opendir(path);
  while (const dirent* entry = ::readdir(folder)) {
    if (std::string(entry->d_name).starts_with(prefix)) {
      names.emplace_back(entry->d_name);
    }
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

Result<Peers> connect(MemoryStore& store, Rank rank, int worldSize, const Options& options = {}) {
  return internal::connectPeers(store, rank, worldSize, options, Clock::now() + std::chrono::seconds(20), "shm test");
}

// Every open or mapped file of this process, by the kernel's names.
std::set<std::string> openAndMappedFiles() {
  std::set<std::string> files;
  for (const std::string& fd : listFolder("/proc/self/fd", "")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink("/proc/self/fd/" + fd, error);
    if (!error) {
      files.insert(target.string());
    }
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (const auto at = line.find('/'); at != std::string::npos) {
      files.insert(line.substr(at));
    }
  }
  return files;
}

// Without a file, kill -9 can leave no file behind.
TEST(ShmTransport, UsesNoNamedFile) {
  const auto before = openAndMappedFiles();
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const auto peers = connect(store, rank, 2);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    int numMemfds = 0;
    for (const std::string& file : openAndMappedFiles()) {
      const bool isMemfd = file.starts_with("/memfd:shardwire-");
      numMemfds += isMemfd ? 1 : 0;
      EXPECT_TRUE(before.contains(file) || isMemfd || file.starts_with("socket:") || file.starts_with("pipe:") ||
                  file.starts_with("/proc/") || file.starts_with("/usr/lib") || file.starts_with("/dev/zero") ||
                  file.starts_with("anon_inode:"))
          << file;
    }
    EXPECT_GE(numMemfds, 2);  // the inbox and the heap are there to be seen
    meet(*peers->connections[static_cast<std::size_t>(1 - rank)]);
  });
}

// The liveness memory, which the C library and the kernel write when the owner ends: peers read the memory, and have no
// way to write.
TEST(ShmTransport, NobodyElseCanWriteTheLiveness) {
  auto own = internal::OwnLiveness::create();
  ASSERT_TRUE(own.isOk()) << own.status().message();
  EXPECT_EQ(::mmap(nullptr, internal::kShmPage, PROT_READ | PROT_WRITE, MAP_SHARED, own->fd(), 0), MAP_FAILED);
  const char byte = 1;
  EXPECT_EQ(::pwrite(own->fd(), &byte, 1, 0), -1);
  const auto theirs = internal::mapLiveness(own->fd());
  ASSERT_TRUE(theirs.isOk()) << theirs.status().message();
  EXPECT_NE(::mprotect(theirs->bytes(), internal::kShmPage, PROT_READ | PROT_WRITE), 0);
  const auto& liveness = *reinterpret_cast<const internal::ShmLiveness*>(theirs->bytes());
  (**own).hold();
  EXPECT_FALSE(liveness.isOwnerDead());
  (**own).release();
  EXPECT_FALSE(liveness.isOwnerDead());
  if (const std::string why = whyNoDeadOwners(); !why.empty()) {
    GTEST_SKIP() << why;
  }
  std::thread([&] { (**own).hold(); }).join();
  EXPECT_TRUE(liveness.isOwnerDead());
}

TEST(ShmTransport, LeavesNoDescriptor) {
  runRanksAsProcesses(1, [](Rank) {
    ASSERT_TRUE(internal::SharedHeap::instance().isOk());  // one descriptor for good
    const auto before = listFolder("/proc/self/fd", "");
    for (int round = 0; round < 3; ++round) {
      MemoryStore store;
      runRanksAsThreads(3, [&](Rank rank) {
        const auto peers = connect(store, rank, 3);
        ASSERT_TRUE(peers.isOk()) << peers.status().message();
      });
    }
    EXPECT_EQ(listFolder("/proc/self/fd", ""), before);
  });
}

// The fabric has five descriptors (arena, liveness, listener, the epoll descriptor, the wake-up of the thread's end),
// and for each peer process the link to the peer, with the peer's arena, and the link from the peer.
TEST(ShmTransport, GroupsShareTheLinksOfTheirProcesses) {
  constexpr int kGroups = 5;
  std::array<MemoryStore, kGroups> stores;
  runRanksAsProcesses(3, [&](Rank rank) {
    ASSERT_TRUE(internal::SharedHeap::instance().isOk());
    const std::size_t before = listFolder("/proc/self/fd", "").size();
    std::vector<Peers> groups;
    std::vector<std::size_t> threads;
    for (MemoryStore& store : stores) {
      auto peers = connect(store, rank, 3);
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
      groups.push_back(std::move(*peers));
      const auto meetAll = [&] {
        for (Rank peer = 0; peer < 3; ++peer) {
          if (peer != rank) {
            meet(*groups.back().connections[static_cast<std::size_t>(peer)]);
          }
        }
      };
      meetAll();
      // Of the fabric: the arena, the liveness, the socket, and three that the fabric's thread waits on. Of each peer:
      // the arena, and a socket for each direction.
      EXPECT_EQ(listFolder("/proc/self/fd", "").size(), before + 6 + 2 * 3);
      threads.push_back(listFolder("/proc/self/task", "").size());
      EXPECT_EQ(threads.back(), threads.front());  // the fabric's has come with the first group
      meetAll();                                   // no rank leaves before all have counted
    }
    groups.clear();
    EXPECT_EQ(listFolder("/proc/self/fd", "").size(), before);
    EXPECT_EQ(listFolder("/proc/self/task", "").size(), threads.front() - 1);
  });
}

// The remains of a group are released as soon as the peers have finished with the group, while other groups stay.
TEST(ShmTransport, ManyGroupsLeaveNothing) {
  constexpr int kRounds = 300;
  MemoryStore first;
  std::deque<MemoryStore> stores(kRounds);
  runRanksAsProcesses(2, [&](Rank rank) {
    auto stays = connect(first, rank, 2);
    ASSERT_TRUE(stays.isOk()) << stays.status().message();
    Connection& link = *stays->connections[static_cast<std::size_t>(1 - rank)];
    const auto fabric = *internal::ShmFabric::instance();
    std::size_t fds = 0;
    for (int round = 0; round < kRounds; ++round) {
      auto peers = connect(stores[static_cast<std::size_t>(round)], rank, 2);
      ASSERT_TRUE(peers.isOk()) << peers.status().message();
      meet(*peers->connections[static_cast<std::size_t>(1 - rank)]);
      if (round == 0) {
        fds = listFolder("/proc/self/fd", "").size();
      }
    }
    meet(link);
    fabric->clearRemains();
    EXPECT_EQ(fabric->numRemains(), 0U);
    EXPECT_EQ(listFolder("/proc/self/fd", "").size(), fds);
    struct stat arena {};
    ASSERT_EQ(::fstat(fabric->arena().fd(), &arena), 0);
    EXPECT_LT(arena.st_blocks * 512, 1 << 20);  // one group's
    meet(link);
  });
}

// Each has its own link for a moment; a link unknown to the process would end with the first group that drops the other
// link.
TEST(ShmTransport, TwoWhoAskForOneProcessAtOnceHoldOneLink) {
  const auto made = internal::ShmFabric::instance();
  ASSERT_TRUE(made.isOk()) << made.status().message();
  const auto& fabric = *made;
  ASSERT_TRUE(fabric->fabric().listen("").isOk());
  std::array<std::shared_ptr<internal::ShmLinkRequest>, 4> requests;
  for (auto& request : requests) {
    request = fabric->linkSoon(fabric->address(), "", [] {});
  }
  std::set<const internal::ShmLink*> links;
  std::vector<std::shared_ptr<const internal::ShmLink>> held;
  for (const auto& request : requests) {
    const Deadline until = Clock::now() + std::chrono::seconds(20);
    while (!request->outcome().has_value() && Clock::now() < until) {
      std::this_thread::yield();
    }
    const auto outcome = request->outcome();
    ASSERT_TRUE(outcome.has_value() && outcome->isOk());
    held.push_back(**outcome);
    links.insert(held.back().get());
  }
  EXPECT_EQ(links.size(), 1U);
}

TEST(ShmTransport, StagedSaysWhoAskedForIt) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const auto peers = connect(store, rank, 2, rank == 1 ? staged() : Options{});
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
    std::byte byte{};
    const MemoryRun run{&byte, reinterpret_cast<std::uint64_t>(&byte), 1};
    EXPECT_EQ(connection.read({&run, 1}).code(), StatusCode::kUnsupported);
    EXPECT_NE(connection.describe().find("SHARDWIRE_ORDINARY_PATH=staged on rank 1"), std::string::npos)
        << connection.describe();
    meet(connection);
  });
}

TEST(ShmTransport, CrossMemoryCanBeRequired) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    Options options;
    options.ordinaryPath = rank == 0 ? OrdinaryPath::kCrossMemory : OrdinaryPath::kStaged;
    const auto peers = connect(store, rank, 2, options);
    ASSERT_EQ(peers.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(peers.status().message().find("rank 0 cannot read the memory of rank 1"), std::string::npos)
        << peers.status().message();
    EXPECT_NE(peers.status().message().find("staged on rank 1"), std::string::npos) << peers.status().message();
  });
}

// Readers that were about to use the memory learn that the contents may be anything by now.
TEST(ShmTransport, MemoryThatTheOwnerTookBackIsKnownAsWithdrawn) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    auto peers = connect(store, rank, 2);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
    EXPECT_FALSE(connection.hasWithdrawn());
    meet(connection);
    if (rank == 0) {
      EXPECT_TRUE(connection.stopFetches());
    }
    meet(connection);
    EXPECT_EQ(connection.hasWithdrawn(), rank == 1);
    meet(connection);  // frames still travel
  });
}

TEST(ShmTransport, TwoGroupsOfTheSameRanksAreIndependent) {
  MemoryStore first;
  MemoryStore second;
  runRanksAsProcesses(2, [&](Rank rank) {
    auto a = connect(first, rank, 2);
    auto b = connect(second, rank, 2);
    ASSERT_TRUE(a.isOk() && b.isOk());
    Connection& inA = *a->connections[static_cast<std::size_t>(1 - rank)];
    Connection& inB = *b->connections[static_cast<std::size_t>(1 - rank)];
    sendFrame(inA, Lane::kBulk, "a", 1);
    sendFrame(inB, Lane::kBulk, "b", 1);
    EXPECT_EQ(static_cast<char>(awaitFrame(inB, Lane::kBulk)[0]), 'b');
    EXPECT_EQ(static_cast<char>(awaitFrame(inA, Lane::kBulk)[0]), 'a');
    meet(inA);
    *a = Peers{};  // the heap's mapping is shared by the two, and stays
    meet(inB);
    EXPECT_TRUE(inB.health().isOk()) << inB.health().message();
    meet(inB);
  });
}

}  // namespace
}  // namespace shardwire::testing
