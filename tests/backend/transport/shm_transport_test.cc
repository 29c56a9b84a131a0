// The contract over shared memory, and what is special to it.
#include <dirent.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/backend/transport/contract.h"

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
                         ::testing::Values(TransportFixture{"Threads", false, Options{}}, TransportFixture{"Processes", true, Options{}},
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

// Every file that this process has open or mapped, by the kernel's names.
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

// No file means none that kill -9 could leave behind.
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
                  file.starts_with("/proc/") || file.starts_with("/usr/lib") || file.starts_with("/dev/zero"))
          << file;
    }
    EXPECT_GE(numMemfds, 2);  // the inbox and the heap are there to be seen
    meet(*peers->connections[static_cast<std::size_t>(1 - rank)]);
  });
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

TEST(ShmTransport, ProcessesKeepOneDescriptorPerPeer) {
  MemoryStore store;
  runRanksAsProcesses(3, [&](Rank rank) {
    ASSERT_TRUE(internal::SharedHeap::instance().isOk());
    const std::size_t before = listFolder("/proc/self/fd", "").size();
    auto peers = connect(store, rank, 3);
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer != rank) {
        meet(*peers->connections[static_cast<std::size_t>(peer)]);
      }
    }
    EXPECT_EQ(listFolder("/proc/self/fd", "").size(), before + 2);
    *peers = Peers{};
    EXPECT_EQ(listFolder("/proc/self/fd", "").size(), before);
  });
}

TEST(ShmTransport, StagedSaysWhoAskedForIt) {
  MemoryStore store;
  runRanksAsProcesses(2, [&](Rank rank) {
    const auto peers = connect(store, rank, 2, rank == 1 ? staged() : Options{});
    ASSERT_TRUE(peers.isOk()) << peers.status().message();
    Connection& connection = *peers->connections[static_cast<std::size_t>(1 - rank)];
    EXPECT_EQ(connection.readGBps(), 0);
    EXPECT_NE(connection.describe().find("SHARDWIRE_ORDINARY_PATH=staged on rank 1"), std::string::npos) << connection.describe();
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
    EXPECT_NE(peers.status().message().find("rank 0 cannot read the memory of rank 1"), std::string::npos) << peers.status().message();
    EXPECT_NE(peers.status().message().find("staged on rank 1"), std::string::npos) << peers.status().message();
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
