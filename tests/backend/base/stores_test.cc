// The stores of this library: their promises to ranks that are threads, processes, or killed in the middle. The first
// tests run over every store: values, deadlines, waiting threads, processes, a killed writer, signals. Then come the
// files and error texts of FileStore, and the limits of MemoryStore.
#include "shardwire/stores.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "shardwire/interrupt.h"
#include "tests/support/dead_owners.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/shared_value.h"

namespace shardwire {
namespace {

using std::chrono::milliseconds;
using testing::runRanksAsProcesses;
using testing::runRanksAsThreads;
using testing::SharedValue;

Deadline soon() {
  return Clock::now() + std::chrono::seconds(30);
}

class Folder {
 public:
  Folder() {
    char path[] = "/tmp/shardwire-stores-XXXXXX";
    EXPECT_NE(::mkdtemp(path), nullptr);
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

 private:
  std::string path_;
};

// Both kinds: `other()` is what another rank has of the same store.
struct Kind {
  const char* name;
  std::function<std::unique_ptr<Store>(const Folder&)> make;
};

class Stores : public ::testing::TestWithParam<Kind> {
 protected:
  Folder folder_;
  std::unique_ptr<Store> store_ = GetParam().make(folder_);
};

TEST_P(Stores, HaveWhatWasSet) {
  const std::string bytes("\0\xff/..%\n", 7), longer(100'000, 'x');
  for (const std::string& key :
       {std::string("shardwire/0"), std::string(".."), std::string(), bytes, std::string("A%2f"), std::string("A/")}) {
    EXPECT_EQ(store_->get(key, Clock::now()).status().code(), StatusCode::kTimeout);
    for (const std::string& value : {key + "!", bytes, std::string(), longer}) {
      ASSERT_EQ(store_->set(key, value), Status::ok());
      const auto got = store_->get(key, Clock::now());  // looks once, though the deadline has passed
      ASSERT_TRUE(got.isOk()) << got.status().message();
      EXPECT_EQ(*got, value);
    }
    ASSERT_EQ(store_->set(key, key + "!"), Status::ok());
  }
  for (const std::string& key :
       {std::string("shardwire/0"), std::string(".."), std::string(), bytes, std::string("A%2f"), std::string("A/")}) {
    EXPECT_EQ(*store_->get(key, soon()), key + "!");  // no key is another's
  }
}

TEST_P(Stores, WaitUntilTheDeadline) {
  const Deadline deadline = Clock::now() + milliseconds(20);
  const auto got = store_->get("never", deadline);
  EXPECT_GE(Clock::now(), deadline);
  EXPECT_EQ(got.status().code(), StatusCode::kTimeout);
  EXPECT_NE(got.status().message().find("nobody set the key 'never'"), std::string::npos) << got.status().message();
}

TEST_P(Stores, WakeThreadsThatWait) {
  constexpr int kRanks = 4;
  runRanksAsThreads(kRanks, [&](Rank rank) {
    // A chain, so that each but the first waits.
    if (rank > 0) {
      const auto got = store_->get(fmt::format("from {}", rank - 1), soon());
      ASSERT_TRUE(got.isOk()) << got.status().message();
      EXPECT_EQ(*got, std::to_string(rank - 1));
    }
    ASSERT_EQ(store_->set(fmt::format("from {}", rank), std::to_string(rank)), Status::ok());
  });
}

TEST_P(Stores, ServeProcesses) {
  constexpr int kRanks = 3;
  runRanksAsProcesses(kRanks, [&](Rank rank) {
    for (int round = 0; round < 50; ++round) {
      ASSERT_EQ(store_->set(fmt::format("{}/{}", round, rank), std::to_string(round * rank)), Status::ok());
      for (Rank peer = 0; peer < kRanks; ++peer) {
        const auto got = store_->get(fmt::format("{}/{}", round, peer), soon());
        ASSERT_TRUE(got.isOk()) << got.status().message();
        EXPECT_EQ(*got, std::to_string(round * peer));
      }
    }
  });
}

// Values of one letter each, of very different lengths.
std::string valueOf(int round) {
  return std::string(static_cast<std::size_t>(round % 7) * 30'000 + 1, static_cast<char>('a' + round % 26));
}

TEST_P(Stores, GiveReadersWholeValuesOnly) {
  constexpr int kRounds = 60;
  ASSERT_EQ(store_->set("key", valueOf(0)), Status::ok());
  SharedValue<std::atomic<bool>> isOver;
  runRanksAsProcesses(2, [&](Rank rank) {
    if (rank == 0) {
      for (int round = 1; round < kRounds; ++round) {
        ASSERT_EQ(store_->set("key", valueOf(round)), Status::ok());
      }
      *isOver = true;
      return;
    }
    do {
      const auto got = store_->get("key", soon());
      ASSERT_TRUE(got.isOk()) << got.status().message();
      ASSERT_EQ(*got, std::string(got->size(), got->front()));
      ASSERT_EQ(got->size() % 30'000, 1U);
    } while (!*isOver);
    EXPECT_EQ(*store_->get("key", soon()), valueOf(kRounds - 1));
  });
}

TEST_P(Stores, OutliveAWriterThatIsKilled) {
  const std::string why = testing::whyNoDeadOwners();
  if (!why.empty() && std::string(GetParam().name) == "Memory") {
    GTEST_SKIP() << why;
  }
  for (int kill = 0; kill < 12; ++kill) {
    SharedValue<std::atomic<pid_t>> writer;
    SharedValue<std::atomic<int>> numSets;
    const auto writes = [&] {
      *writer = ::getpid();
      while (true) {  // until the process is killed; a MemoryStore may be full by then
        static_cast<void>(store_->set("key", valueOf(++*numSets)));
      }
    };
    const auto kills = [&] {
      while (*numSets < 2 + 3 * kill) {
        std::this_thread::yield();
      }
      ASSERT_EQ(::kill(*writer, SIGKILL), 0);  // somewhere in a set(): any moment will do
      const auto got = store_->get("key", soon());
      ASSERT_TRUE(got.isOk()) << got.status().message();
      EXPECT_EQ(*got, std::string(got->size(), got->front()));
      EXPECT_EQ(got->size() % 30'000, 1U);
    };
    runRanksAsProcesses(2, [&](Rank rank) { rank == 0 ? writes() : kills(); }, testing::kRankTimeLimit, {0});
  }
}

TEST_P(Stores, AreInterruptedBySignals) {
  setInterruptCheck([] { return true; });
  const auto got = store_->get("never", soon());
  setInterruptCheck(nullptr);
  EXPECT_EQ(got.status().code(), StatusCode::kInterrupted) << got.status().message();
}

INSTANTIATE_TEST_SUITE_P(
    Both, Stores,
    ::testing::Values(Kind{"File", [](const Folder& folder) { return std::make_unique<FileStore>(folder.path()); }},
                      Kind{"Memory", [](const Folder&) { return std::make_unique<MemoryStore>(); }}),
    [](const auto& info) { return info.param.name; });

TEST(FileStore, MakesItsFolderAndLeavesAFileForEachKeyThatItsUserAloneMayRead) {
  const Folder folder;
  const std::string inner = folder.path() + "/not/yet";
  {
    FileStore store(inner);
    EXPECT_EQ(store.get("a/b", Clock::now()).status().code(), StatusCode::kTimeout);
    ASSERT_EQ(store.set("a/b", "1"), Status::ok());
    ASSERT_EQ(store.set("a/b", "2"), Status::ok());
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(inner)) {
    names.push_back(entry.path().filename());
    EXPECT_EQ(entry.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  EXPECT_EQ(names, std::vector<std::string>{"key_a%2fb"});
  EXPECT_EQ(*FileStore(inner).get("a/b", soon()), "2");
}

TEST(FileStore, SharesAFolderUnderAnotherName) {
  const Folder folder;
  FileStore first(folder.path(), "first-"), second(folder.path(), "second-");
  ASSERT_EQ(first.set("key", "1"), Status::ok());
  EXPECT_EQ(second.get("key", Clock::now()).status().code(), StatusCode::kTimeout);
  ASSERT_EQ(second.set("key", "2"), Status::ok());
  EXPECT_EQ(*first.get("key", soon()), "1");
  EXPECT_EQ(*second.get("key", soon()), "2");
}

void expectWords(const Status& status, const std::vector<std::string>& words) {
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << "no '" << word << "' in: " << status.message();
  }
}

TEST(FileStore, SaysWhichPathCouldNotBeWrittenAndWhy) {
  const Folder folder;
  const std::string file = folder.path() + "/file";
  std::ofstream(file) << "no folder";
  expectWords(FileStore(file).set("key", "value"), {file, "ENOTDIR"});
  expectWords(FileStore("/proc/shardwire").set("key", "value"), {"/proc/shardwire", "ENOENT"});
  expectWords(FileStore("/proc").set("key", "value"), {"cannot write /proc/key_key", "open: ", "ENOENT"});
  expectWords(FileStore(folder.path()).set(std::string(300, 'k'), "value"),
              {folder.path() + "/key_kkk", "ENAMETOOLONG"});
  EXPECT_EQ(folder.files(), std::vector<std::string>{"file"});
}

TEST(FileStore, SaysWhichPathCouldNotBeReadAndWhy) {
  const Folder folder;
  FileStore store(folder.path());
  std::filesystem::create_directory(folder.path() + "/key_key");  // a folder cannot be read as a file, even by root
  expectWords(store.get("key", soon()).status(), {folder.path() + "/key_key", "EISDIR"});
  expectWords(store.set("key", "value"), {folder.path() + "/key_key", "rename: ", "EISDIR"});
  EXPECT_EQ(folder.files(), std::vector<std::string>{"key_key"});
}

TEST(MemoryStore, SaysWhenItsRoomIsUsedUp) {
  MemoryStore store(100);
  ASSERT_EQ(store.set("key", std::string(50, 'x')), Status::ok());
  expectWords(store.set("other", std::string(50, 'y')), {"100 bytes has 39 left", "the key 'other' needs 63"});
  ASSERT_EQ(store.set("other", std::string(26, 'z')), Status::ok());  // to the last byte
  expectWords(store.set("", ""), {"has 0 left"});
  EXPECT_EQ(*store.get("key", soon()), std::string(50, 'x'));
  EXPECT_EQ(*store.get("other", soon()), std::string(26, 'z'));
}

TEST(MemoryStore, SaysThatThereIsNoMemory) {
  MemoryStore store(std::size_t{1} << 60);
  expectWords(store.set("key", "value"), {"mmap of 1152921504606846976 bytes", "ENOMEM"});
  expectWords(store.get("key", soon()).status(), {"ENOMEM"});
  for (const std::size_t less : {0, 1, 1000}) {
    MemoryStore largest(SIZE_MAX - less);
    expectWords(largest.set("key", std::string(100'000, 'x')), {fmt::format("mmap of {} bytes", SIZE_MAX - less)});
  }
}

}  // namespace
}  // namespace shardwire
