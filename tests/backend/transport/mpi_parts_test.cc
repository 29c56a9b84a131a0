// The parts of the mpi transport without MPI: a launcher's variables, the lanes' bookkeeping, the bytes on the wire,
// and the error texts outside an MPI job.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <thread>

#include "backend/transport/endpoint.h"
#include "backend/transport/mpi/module/mpi_calls.h"
#include "backend/transport/mpi/mpi_lane.h"
#include "backend/transport/mpi/mpi_launch.h"
#include "backend/transport/mpi/mpi_message.h"
#include "tests/support/hex.h"

namespace shardwire::testing {
namespace {

using namespace internal;

std::optional<MpiLaunch> launchOf(const std::map<std::string, std::string>& variables, std::string* whyNot) {
  return readMpiLaunch(
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      whyNot);
}

TEST(MpiCalls, NoCallIsUnderWayOnceTheyAreClosed) {
  for (int round = 0; round < 50; ++round) {
    MpiCalls calls;
    std::atomic<int> inside{0};
    std::atomic<int> made{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([&] {
        for (bool mayRun = true; mayRun;) {
          const MpiCall call(&calls);
          mayRun = call.mayRun();
          inside += mayRun ? 1 : 0;
          made += mayRun ? 1 : 0;
          inside -= mayRun ? 1 : 0;
        }
      });
    }
    while (made.load() < 100) {
      std::this_thread::yield();
    }
    calls.close();
    EXPECT_EQ(inside.load(), 0);
    const int before = made.load();
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(made.load(), before);
    EXPECT_TRUE(calls.isClosed());
  }
}

TEST(MpiLaunch, ReadsWhatLaunchersSay) {
  std::string whyNot;
  EXPECT_EQ(launchOf({{"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"PMIX_RANK", "1"},
                      {"PMIX_NAMESPACE", "77"},
                      {"OMPI_MCA_orte_precondition_transports", "ab-cd"}},
                     &whyNot),
            (MpiLaunch{"mpirun", "ab-cd 77", 4, 2, false}));
  EXPECT_EQ(launchOf({{"PMIX_RANK", "1"},
                      {"PMIX_NAMESPACE", "slurm.pmix.9.0"},
                      {"SLURM_JOB_ID", "9"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_NTASKS", "8"}},
                     &whyNot),
            (MpiLaunch{"PMIx", "slurm.pmix.9.0 slurm 9.0", 8, 0, false}));
  EXPECT_EQ(launchOf({{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}}, &whyNot), (MpiLaunch{"PMI", "", 3, 0, true}));
  EXPECT_EQ(whyNot, "");
}

TEST(MpiLaunch, SaysWhyThereIsNoJob) {
  std::string whyNot;
  EXPECT_FALSE(launchOf({{"RANK", "0"}, {"SLURM_JOB_ID", "9"}}, &whyNot).has_value());
  EXPECT_NE(whyNot.find("neither by mpirun nor"), std::string::npos) << whyNot;
  EXPECT_FALSE(launchOf({{"OMPI_COMM_WORLD_SIZE", "2"}, {"TORCHELASTIC_RUN_ID", "none"}}, &whyNot).has_value());
  EXPECT_NE(whyNot.find("torchrun started this process inside of an MPI job"), std::string::npos) << whyNot;
}

TEST(MpiEndpoint, IsUnsupportedWithoutAJob) {
  if (::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || ::getenv("PMIX_RANK") != nullptr) {
    GTEST_SKIP() << "this is an MPI job";
  }
  const Options options;
  const auto made = makeMpiEndpoint({0, 2, "host", &options});
  ASSERT_EQ(made.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(made.status().message().find("MPI is not initialised"), std::string::npos) << made.status().message();
}

// Frames of random lengths go from a writer to a reader as over MPI, each end keeping as much as allowed.
TEST(MpiLane, CarriesFramesInOrderAndNeverOverwritesOne) {
  for (const std::size_t capacity : {std::size_t{4096}, std::size_t{16} << 10}) {
    const std::size_t maxFrame = maxLaneFrameBytes(capacity);
    MpiLaneWriter writer(capacity);
    MpiLaneReader reader(capacity);
    std::minstd_rand random(7);
    struct Sent {
      std::span<std::byte> message;
      std::uint32_t number;
    };
    std::deque<Sent> wire;
    std::uint32_t sent = 0;
    std::uint32_t taken = 0;
    std::size_t mostKept = 0;
    std::span<std::byte> posted;
    while (taken < 20000) {
      const std::size_t size = random() % 4 == 0 ? maxFrame : 4 + random() % 200;
      if (auto room = writer.reserve(size, size + 10); random() % 2 == 0 && !room.empty()) {
        ASSERT_GE(room.size(), size);
        std::memset(room.data(), static_cast<int>(sent & 0xFF), size);
        std::memcpy(room.data(), &sent, sizeof(sent));
        std::uint32_t number = 0;
        wire.push_back({writer.commit(size, &number), number});
        ++sent;
        mostKept = std::max<std::size_t>(mostKept, sent - taken);
      }
      posted = posted.empty() ? reader.post() : posted;
      // However much the reader keeps: the writer's process may end its group and poll no more.
      ASSERT_FALSE(posted.empty()) << (sent - taken) << " frames are kept";
      if (!wire.empty() && random() % 2 == 0) {
        ASSERT_LE(wire.front().message.size(), posted.size());
        std::memcpy(posted.data(), wire.front().message.data(), wire.front().message.size());
        const std::size_t bytes = wire.front().message.size();
        writer.sent(wire.front().number);
        wire.pop_front();
        posted = {};
        reader.arrived(bytes);
      }
      if (const auto frame = reader.peek(); !frame.empty() && random() % 3 == 0) {
        std::uint32_t number = 0;
        std::memcpy(&number, frame.data(), sizeof(number));
        ASSERT_EQ(number, taken);
        for (std::size_t i = sizeof(number); i < frame.size(); ++i) {
          ASSERT_EQ(frame[i], static_cast<std::byte>(number))
              << "frame " << number << " of " << frame.size() << " bytes, byte " << i;
        }
        ++taken;
        reader.release();
        ASSERT_TRUE(writer.releasedByPeer(static_cast<std::uint32_t>(reader.releasedBytes())));
      }
    }
    EXPECT_GE(mostKept, 3U);
    EXPECT_FALSE(writer.releasedByPeer(static_cast<std::uint32_t>(reader.releasedBytes() + 10 * capacity)));
  }
}

TEST(MpiMessage, HeadsAreAsDocumented) {
  const MpiHead head{{1, 0x01020304, 0xFFFFFFFF}, MpiKind::kRequest, 0xABCDEF};
  std::array<std::byte, kMpiHeadBytes> bytes;
  encodeHead(head, bytes.data());
  EXPECT_EQ(toHex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}), "0100000004030201ffffffff02efcdab");
  EXPECT_EQ(decodeHead(bytes), head);
  EXPECT_FALSE(decodeHead(std::span(bytes).first(15)).has_value());
  bytes[12] = std::byte{9};
  EXPECT_FALSE(decodeHead(bytes).has_value());
}

TEST(MpiMessage, RequestsAreAsDocumented) {
  const MemoryRun listed[] = {{nullptr, 0x10, 3}, {nullptr, 0x20, 5}};
  std::string bytes;
  EXPECT_EQ(encodeRequest(7, listed, &bytes), 2U);
  EXPECT_EQ(toHex(bytes),
            "07000000"
            "00000000"
            "0200000000000000"
            "1000000000000000"
            "0300000000000000"
            "2000000000000000"
            "0500000000000000");
  const auto request = decodeRequest(bytes);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->space, 7U);
  EXPECT_EQ(request->runs, (std::vector<RemoteRun>{{0x10, 3}, {0x20, 5}}));
  std::vector<MemoryRun> regular;
  for (std::uint64_t i = 0; i < 100; ++i) {
    regular.push_back({nullptr, 0x1000 - 16 * i, 8});  // backwards
  }
  regular.push_back({nullptr, 0x4000, 8});
  bytes.clear();
  EXPECT_EQ(encodeRequest(2, regular, &bytes), 100U);
  EXPECT_EQ(toHex(bytes),
            "02000000"
            "01000000"
            "6400000000000000"
            "0010000000000000"
            "0800000000000000"
            "f0ffffffffffffff");
  ASSERT_EQ(decodeRequest(bytes)->runs.size(), 100U);
  EXPECT_EQ(decodeRequest(bytes)->runs[99], (RemoteRun{0x1000 - 16 * 99, 8}));
}

TEST(MpiMessage, RequestsThatNobodySendsAreRefused) {
  const MemoryRun listed[] = {{nullptr, 0x10, 3}, {nullptr, 0x20, 5}};
  std::string bytes;
  encodeRequest(7, listed, &bytes);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decodeRequest(std::string_view(bytes).substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(decodeRequest(bytes + "x").has_value());
  for (const auto& [at, value] :
       {std::pair<std::size_t, char>{4, 2}, {8, 3}, {15, 1}, {24, 0}}) {  // form, counts, an empty run
    std::string wrong = bytes;
    wrong[at] = value;
    EXPECT_FALSE(decodeRequest(wrong).has_value()) << at;
  }
}

TEST(MpiMessage, BothEndsCutRunsAlikeAndLongOnesApart) {
  std::vector<std::byte> memory(1 << 20);
  std::minstd_rand random(3);
  for (const std::size_t longest : {std::size_t{100000}, std::size_t{70000}, kMpiLongestMessage}) {
    std::vector<MpiRun> runs;
    for (int i = 0; i < 200; ++i) {
      const bool mayBeLong = i < 100 && random() % 5 == 0;  // then enough short runs to fill messages
      runs.push_back({memory.data(), 1 + random() % (mayBeLong ? 300000 : 9000)});
    }
    std::vector<MpiRun> scratch;
    std::size_t total = 0;
    const Status done = forEachMessage(runs, longest, &scratch, [&](std::span<const MpiRun> message) {
      std::size_t bytes = 0;
      for (const MpiRun& run : message) {
        bytes += run.size;
        EXPECT_TRUE(run.size < kMpiLongRun || message.size() == 1);
      }
      EXPECT_GT(bytes, 0U);
      EXPECT_LE(bytes, message.size() == 1 ? longest : kMpiPackedBytes);
      total += bytes;
      return Status::ok();
    });
    EXPECT_TRUE(done.isOk());
    std::size_t wanted = 0;
    for (const MpiRun& run : runs) {
      wanted += run.size;
    }
    EXPECT_EQ(total, wanted);
  }
}

}  // namespace
}  // namespace shardwire::testing
