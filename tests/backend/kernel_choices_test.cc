// How large moves are stored: the rule, the file of the host, and the line that describes the choice.
#include "backend/communicator/kernel_choices.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"

namespace shardwire::internal {
namespace {

using std::chrono::microseconds;

TEST(FastestLargeStore, IsOneStreamUnlessAPairGains) {
  EXPECT_EQ(fastestLargeStore({microseconds(90), microseconds(100), microseconds(80)}), RowStore::kStreamPair);
  EXPECT_EQ(fastestLargeStore({microseconds(90), microseconds(100), microseconds(99)}), RowStore::kStream);
  EXPECT_EQ(fastestLargeStore({microseconds(90), microseconds(100), microseconds(1000)}), RowStore::kStream);
}

TEST(FastestLargeStore, IsOrdinaryWhereThatPaysForTheLinesWrittenLater) {
  EXPECT_EQ(fastestLargeStore({microseconds(70), microseconds(100), microseconds(100)}), RowStore::kStream);
  EXPECT_EQ(fastestLargeStore({microseconds(60), microseconds(100), microseconds(100)}), RowStore::kAhead);
}

TEST(MeasureLargeStores, TimesEveryWay) {
  const LargeStoreTimes times = measureLargeStores();
  EXPECT_GT(times.ahead.count(), 0);
  EXPECT_GT(times.stream.count(), 0);
  EXPECT_GT(times.pair.count(), 0);
}

class KeptTimes : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string made = (std::filesystem::temp_directory_path() / "shardwire-choices-XXXXXX").string();
    ASSERT_NE(::mkdtemp(made.data()), nullptr);
    folder_ = made;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string onlyFile() const { return std::filesystem::directory_iterator(folder_)->path().string(); }

  std::string folder_;
};

TEST_F(KeptTimes, AreReadByLaterProcesses) {
  const LargeStoreTimes first = largeStoreTimes(folder_);
  EXPECT_EQ(largeStoreTimes(folder_), first);
  std::ofstream(onlyFile()) << "30 20 10\n";
  EXPECT_EQ(largeStoreTimes(folder_), (LargeStoreTimes{Duration(30), Duration(20), Duration(10)}));
}

TEST_F(KeptTimes, AreMeasuredAnewWhereTheFileIsUnreadable) {
  largeStoreTimes(folder_);
  const std::string file = onlyFile();
  for (const char* text : {"", "30 20", "30 20 -10\n", "30 20 10 more\n"}) {
    std::ofstream(file) << text;
    const LargeStoreTimes times = largeStoreTimes(folder_);
    EXPECT_GT(times.pair.count(), 10) << text;
    EXPECT_EQ(largeStoreTimes(folder_), times) << text;
  }
}

TEST_F(KeptTimes, OfAnotherUserAreNotTrusted) {
  largeStoreTimes(folder_);
  std::ofstream(onlyFile()) << "30 20 10\n";
  std::filesystem::permissions(onlyFile(), std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  EXPECT_NE(largeStoreTimes(folder_).pair, Duration(10));
}

TEST_F(KeptTimes, OfHandOversAreReadByLaterProcesses) {
  std::ofstream(folder_ + "/hand-overs-1-" + kernels().name) << "30 20 10\n";
  EXPECT_EQ(handOverTimes(folder_), (HandOverTimes{Duration(30), Duration(20), Duration(10)}));
}

TEST_F(KeptTimes, OfHandOversAreMeasuredByOneProcessAtATime) {
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(folder, LOCK_EX), 0);
  EXPECT_EQ(handOverTimes(folder_), std::nullopt);  // the measuring process kept nothing
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::ofstream(folder_ + "/hand-overs-1-" + kernels().name) << "30 20 10\n";
    ::flock(folder, LOCK_UN);
  });
  EXPECT_EQ(handOverTimes(folder_), (HandOverTimes{Duration(30), Duration(20), Duration(10)}));
  other.join();
  ::close(folder);
}

// Whether the times can be measured depends on the cores and on other work.
TEST_F(KeptTimes, OfHandOversAreKeptWhereTheyAreMeasured) {
  if (const auto times = handOverTimes(folder_)) {
    EXPECT_GT(times->ahead.count(), 0);
    EXPECT_GT(times->plain.count(), 0);
    EXPECT_GT(times->streamed.count(), 0);
    EXPECT_EQ(handOverTimes(folder_), times);
  } else {
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
}

TEST(HandOverTimes, ChooseWhatIsMuchFaster) {
  const auto us = [](int ahead, int plain, int streamed) {
    return HandOverTimes{microseconds(ahead), microseconds(plain), microseconds(streamed)};
  };
  EXPECT_EQ(fastestCachedStore(us(100, 99, 1)), RowStore::kAhead);
  EXPECT_EQ(fastestCachedStore(us(100, 90, 1)), RowStore::kPlain);
  EXPECT_TRUE(streamingPays(us(99, 99, 100)));
  EXPECT_TRUE(streamingPays(us(150, 150, 100)));
  EXPECT_FALSE(streamingPays(us(90, 150, 100)));
  EXPECT_FALSE(streamingPays(us(150, 90, 100)));
}

TEST(DescribeKernels, NamesTheInstructionSetAndTheChoice) {
  const RowStore before = largeStore();
  useLargeStore(RowStore::kStream);
  EXPECT_NE(describeKernels().find(std::string("kernels: ") + kernels().name), std::string::npos) << describeKernels();
  EXPECT_NE(describeKernels().find("one stream past the caches"), std::string::npos) << describeKernels();
  const char* isa = ::getenv("SHARDWIRE_ISA");
  const std::string isaBefore = isa == nullptr ? "" : isa;
  ::setenv("SHARDWIRE_ISA", kernels().name, 1);
  EXPECT_NE(describeKernels().find("by SHARDWIRE_ISA"), std::string::npos) << describeKernels();
  const std::string missing = kernelsOf(Isa::kNeon) == nullptr ? "neon" : "avx2";
  ::setenv("SHARDWIRE_ISA", missing.c_str(), 1);
  EXPECT_NE(describeKernels().find(missing + " is none that it has"), std::string::npos) << describeKernels();
  MemoryStore store;
  EXPECT_TRUE(Communicator::create(store, 0, 1, {}, "mixed hosts").isOk());
  ::setenv("SHARDWIRE_ISA", "avx", 1);
  const Status wrong = Communicator::create(store, 0, 1, {}, "wrong").status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(wrong.message(), "SHARDWIRE_ISA=avx is not one of baseline, avx2, avx512, neon");
  ::setenv("SHARDWIRE_ISA", isaBefore.c_str(), 1);
  useLargeStore(before);
}

}  // namespace
}  // namespace shardwire::internal
