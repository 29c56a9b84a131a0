// The part of the contract about reading a peer's memory. Included by contract.h.
#pragma once

#include <sys/mman.h>

#include "backend/memory/shared_heap.h"

namespace shardwire::testing {

using internal::MemoryRun;
using internal::Reach;
using internal::RemoteAddress;

// An owner's description of a buffer for the peer.
struct Exposed {
  RemoteAddress address;
  Reach reach;
  std::uint64_t size;
};

inline std::byte patternByte(std::size_t i) {
  return static_cast<std::byte>(i * 2654435761U >> 13);
}

inline void fillPattern(std::byte* bytes, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = patternByte(i);
  }
}

inline bool isPattern(const std::byte* bytes, std::size_t size, std::size_t first = 0) {
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] != patternByte(first + i)) {
      return false;
    }
  }
  return true;
}

// Runs of all of `exposed` into `copy`, which is twice as long and all 0xee: now the local side is contiguous, now the
// remote one, now neither; empty runs in between.
inline std::vector<MemoryRun> scatteredRuns(std::vector<std::byte>& copy, const Exposed& exposed) {
  std::minstd_rand random(5);
  std::vector<MemoryRun> runs;
  std::size_t local = 0;
  std::size_t remote = 0;
  while (remote + 600 < exposed.size && local + 600 < copy.size()) {
    const std::size_t bytes = random() % 5 == 0 ? 0 : 1 + random() % 500;
    runs.push_back({copy.data() + local, exposed.address.value + remote, bytes});
    local += bytes + (runs.size() % 3 == 0 ? 7 : 0);
    remote += bytes + (runs.size() % 4 == 0 ? 11 : 0);
  }
  return runs;
}

inline void expectScattered(const std::vector<std::byte>& copy, const std::vector<MemoryRun>& runs,
                            const Exposed& exposed) {
  std::size_t end = 0;
  for (const MemoryRun& run : runs) {
    const std::size_t at = static_cast<std::size_t>(run.local - copy.data());
    for (; end < at; ++end) {
      ASSERT_EQ(copy[end], std::byte{0xee}) << "a byte between runs was written";
    }
    ASSERT_TRUE(isPattern(run.local, run.bytes, run.remote - exposed.address.value));
    end += run.bytes;
  }
}

// Rank 0 exposes `bytes` and waits until rank 1's `function` has finished with the bytes.
inline void withExposed(Rank rank, Peers& peers, const std::function<std::span<std::byte>()>& makeBuffer,
                        const std::function<void(Connection&, const Exposed&)>& function) {
  Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
  if (rank == 0) {
    const auto buffer = makeBuffer();
    Exposed exposed{{}, Reach::kNone, buffer.size()};
    exposed.reach = connection.expose(buffer.data(), buffer.size(), &exposed.address);
    sendFrame(connection, Lane::kControl, &exposed, sizeof(exposed));
  } else {
    const auto frame = awaitFrame(connection, Lane::kControl);
    ASSERT_EQ(frame.size(), sizeof(Exposed));
    Exposed exposed;
    std::memcpy(&exposed, frame.data(), sizeof(exposed));
    connection.release(Lane::kControl);
    function(connection, exposed);
  }
  meet(connection);
}

TEST_P(TransportContract, HeapMemoryIsReadDirectly) {
  if (GetParam().isWire) {
    GTEST_SKIP() << "a wire maps nothing";
  }
  constexpr std::size_t kSize = (std::size_t{3} << 20) + 5;
  run(2, [](Rank rank, Peers& peers) {
    auto heap = internal::SharedHeap::instance();
    ASSERT_TRUE(heap.isOk()) << heap.status().message();
    std::byte* block = nullptr;
    withExposed(
        rank, peers,
        [&] {
          block = static_cast<std::byte*>(*(*heap)->allocate(kSize));
          fillPattern(block, kSize);
          return std::span(block, kSize);
        },
        [](Connection& connection, const Exposed& exposed) {
          ASSERT_EQ(exposed.reach, Reach::kDirect);
          const std::byte* bytes = connection.map(exposed.address, exposed.size);
          ASSERT_NE(bytes, nullptr);
          EXPECT_TRUE(isPattern(bytes, exposed.size));
        });
    if (block != nullptr) {
      (*heap)->free(block);
    }
  });
}

TEST_P(TransportContract, AddressesThatCannotBeAreNotMapped) {
  run(2, [](Rank rank, Peers& peers) {
    Connection& connection = *peers.connections[static_cast<std::size_t>(1 - rank)];
    EXPECT_EQ(connection.map({internal::kHeapSpace, std::uint64_t{1} << 62}, 8), nullptr);
    EXPECT_EQ(connection.map({internal::kHeapSpace, ~std::uint64_t{0} - 3}, 8), nullptr);
    EXPECT_EQ(connection.map({internal::kHeapSpace, 0}, ~std::size_t{0}), nullptr);
    EXPECT_EQ(connection.map({77, 0}, 8), nullptr);
    meet(connection);
  });
}

TEST_P(TransportContract, OrdinaryMemoryIsReadAsExposed) {
  run(2, [](Rank rank, Peers& peers) {
    constexpr std::size_t kSize = (std::size_t{1} << 20) + 13;
    std::vector<std::byte> memory;
    withExposed(
        rank, peers,
        [&] {
          memory.resize(kSize);
          fillPattern(memory.data(), kSize);
          return std::span(memory);
        },
        [&](Connection& connection, const Exposed& exposed) {
          std::vector<std::byte> copy(kSize);
          switch (exposed.reach) {
            case Reach::kDirect:
              EXPECT_TRUE(isPattern(connection.map(exposed.address, kSize), kSize));
              break;
            case Reach::kCopy: {
              const MemoryRun whole{copy.data(), exposed.address.value, kSize};
              const Status read = connection.read({&whole, 1});
              ASSERT_TRUE(read.isOk()) << read.message();
              EXPECT_TRUE(isPattern(copy.data(), kSize));
              EXPECT_EQ(connection.map(exposed.address, kSize), nullptr);
              break;
            }
            case Reach::kNone:
            case Reach::kFetch:  // for the tests of fetches, such as FetchedRunsArrive
              const MemoryRun whole{copy.data(), exposed.address.value, kSize};
              EXPECT_EQ(connection.read({&whole, 1}).code(), StatusCode::kUnsupported);
              break;
          }
        });
  });
}

TEST_P(TransportContract, ReadsScatteredRunsIntoScatteredPlaces) {
  run(2, [](Rank rank, Peers& peers) {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    std::vector<std::byte> memory;
    withExposed(
        rank, peers,
        [&] {
          memory.resize(kSize);
          fillPattern(memory.data(), kSize);
          return std::span(memory);
        },
        [&](Connection& connection, const Exposed& exposed) {
          if (exposed.reach != Reach::kCopy) {
            return;  // there is no read() to look at
          }
          // More pieces than one call takes; now the local side is contiguous, now the remote one, now neither; empty
          // runs in between.
          std::vector<std::byte> copy(2 * kSize, std::byte{0xee});
          const std::vector<MemoryRun> runs = scatteredRuns(copy, exposed);
          ASSERT_GT(runs.size(), 3000U);
          const Status read = connection.read(runs);
          ASSERT_TRUE(read.isOk()) << read.message();
          expectScattered(copy, runs, exposed);
        });
  });
}

TEST_P(TransportContract, ReadingWhatIsNotThereIsAnError) {
  if (!GetParam().forked) {
    GTEST_SKIP() << "threads read each other's memory directly";
  }
  run(2, [](Rank rank, Peers& peers) {
    constexpr std::size_t kPage = 4096;
    std::byte* pages = nullptr;
    withExposed(
        rank, peers,
        [&] {
          // The second of three pages is missing.
          pages = static_cast<std::byte*>(
              ::mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
          fillPattern(pages, 3 * kPage);
          ::munmap(pages + kPage, kPage);
          return std::span(pages, 3 * kPage);
        },
        [](Connection& connection, const Exposed& exposed) {
          if (exposed.reach != Reach::kCopy) {
            return;
          }
          std::vector<std::byte> copy(3 * kPage);
          const MemoryRun whole{copy.data(), exposed.address.value, 3 * kPage};
          const Status read = connection.read({&whole, 1});
          EXPECT_EQ(read.code(), StatusCode::kInternal);
          EXPECT_NE(read.message().find("EFAULT"), std::string::npos) << read.message();
          EXPECT_NE(read.message().find("rank 0"), std::string::npos) << read.message();
          const MemoryRun last{copy.data(), exposed.address.value + 2 * kPage, kPage};
          EXPECT_TRUE(connection.read({&last, 1}).isOk());  // the connection is none the worse
          EXPECT_TRUE(connection.health().isOk());
        });
    if (pages != nullptr) {
      ::munmap(pages, kPage);
      ::munmap(pages + 2 * kPage, kPage);
    }
  });
}

}  // namespace shardwire::testing
