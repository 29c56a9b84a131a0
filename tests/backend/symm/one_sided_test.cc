// One-sided access, on one host and between hosts alike: puts, gets and atomic operations of any geometry against a
// model, what is seen in which order, what quiet() says, what comes back, and how calls end when the owner dies or is
// stopped.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <set>
#include <span>
#include <string>

#include "backend/memory/shared_heap.h"
#include "backend/symm/deferred_release.h"
#include "backend/symm/quiet.h"
#include "backend/symm/served_block.h"
#include "backend/symm/word_ops.h"
#include "tests/backend/exec/fake_group.h"
#include "tests/backend/thread_group.h"
#include "tests/support/random.h"
#include "tests/support/shared_value.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Block = std::shared_ptr<SymmetricMemory>;

// How the ranks reach each other: all by addresses, all by requests, or some by either.
enum class Where : unsigned char { kOneHost, kWires, kTwoHosts };

Options optionsFor(Where where, Rank rank, Duration timeout) {
  Options options = testOptions();
  options.transports = where == Where::kWires ? "tcp" : "";
  options.timeout = timeout;
  if (where == Where::kTwoHosts) {
    options.hostId = rank == 0 ? "one" : "other";
  }
  return options;
}

class OneSidedAccess : public ::testing::TestWithParam<Where> {
 protected:
  static void withThreads(int n, const std::function<void(Communicator&)>& body) {
    MemoryStore store;
    std::atomic<int> done{0};
    testing::runRanksAsThreads(n, [&](Rank rank) {
      auto group = Communicator::create(store, rank, n, optionsFor(GetParam(), rank, seconds(30)), "test");
      ASSERT_TRUE(group.isOk()) << group.status().message();
      body(**group);
      ++done;
      await(done, n);
    });
  }
  static void withProcesses(int n, const std::function<void(Communicator&)>& body, const std::set<Rank>& mayDie = {},
                            Duration timeout = seconds(30)) {
    MemoryStore store;
    testing::runRanksAsProcesses(
        n,
        [&](Rank rank) {
          auto group = Communicator::create(store, rank, n, optionsFor(GetParam(), rank, timeout), "test");
          ASSERT_TRUE(group.isOk()) << group.status().message();
          body(**group);
        },
        testing::kRankTimeLimit, mayDie);
  }
};

Block zeroedBlock(Communicator& group, std::size_t bytes) {
  auto made = group.makeSymmetric({.bytes = bytes, .text = "bytes", .isZeroed = true});
  EXPECT_TRUE(made.isOk()) << made.status().message();
  return made.isOk() ? *made : nullptr;
}

void expectFine(const Status& status) {
  EXPECT_TRUE(status.isOk()) << status.message();
}

PartView wordsAt(std::size_t offset, std::int64_t count) {
  return {offset, DType::kUInt64, {count}, {1}};
}

TensorView viewOfWords(std::vector<std::uint64_t>& values) {
  return TensorView::contiguous(values.data(), DType::kUInt64, {static_cast<std::int64_t>(values.size())});
}

std::uint64_t atomicOf(const Block& block, Rank peer, std::size_t offset, DType dtype, WordOp op, std::uint64_t operand,
                       std::uint64_t expected = 0, bool fetches = true) {
  const auto before = block->atomic(peer, offset, dtype, op, operand, expected, fetches);
  EXPECT_TRUE(before.isOk()) << before.status().message();
  return before.isOk() ? *before : 0;
}

// ---- against a model

// Bytes at `offset + indices * strides` of a flat memory, row by row.
template <typename Visit>
void forEachElement(const Dims& shape, const Dims& strides, std::size_t elemBytes, std::size_t offset,
                    const Visit& visit) {
  std::vector<std::int64_t> index(static_cast<std::size_t>(shape.size()), 0);
  for (std::int64_t n = 0; n < numElements(shape); ++n) {
    std::size_t at = offset;
    for (int dim = 0; dim < shape.size(); ++dim) {
      at += static_cast<std::size_t>(index[static_cast<std::size_t>(dim)] * strides[dim]) * elemBytes;
    }
    visit(at);
    for (int dim = shape.size() - 1; dim >= 0; --dim) {
      if (++index[static_cast<std::size_t>(dim)] < shape[dim]) {
        break;
      }
      index[static_cast<std::size_t>(dim)] = 0;
    }
  }
}

struct Geometry {
  DType dtype = DType::kUInt8;
  Dims shape;
  Dims strides;
  std::size_t extent = 0;  // bytes
};

// A box of up to `most` bytes in extent: dense or with gaps, the dimensions in any order; now and then with an extent
// of 0.
Geometry randomGeometry(testing::Random& random, std::size_t most) {
  constexpr std::array<DType, 6> kTypes = {DType::kUInt8, DType::kBFloat16,   DType::kFloat32,
                                           DType::kInt64, DType::kComplex128, DType::kBool};
  Geometry box{kTypes[random.bits() % kTypes.size()], {}, {}, 0};
  const std::size_t elemBytes = elementBytes(box.dtype);
  const int numDims = static_cast<int>(random.bits() % 4);
  std::vector<std::int64_t> extents;
  std::int64_t step = 1;
  std::vector<std::int64_t> strides;
  for (int dim = 0; dim < numDims; ++dim) {
    const auto room = static_cast<std::int64_t>(most / elemBytes) / step;
    const auto extent =
        static_cast<std::int64_t>(random.bits() % static_cast<std::uint64_t>(std::max<std::int64_t>(
                                                      1, std::min<std::int64_t>(room, dim == 0 ? 5000 : 9)))) +
        (random.bits() % 16 == 0 ? 0 : 1);
    strides.push_back(step);
    extents.push_back(extent);
    step *= std::max<std::int64_t>(1, extent) + static_cast<std::int64_t>(random.bits() % 3);
  }
  for (int dim = numDims - 1; dim >= 0; --dim) {
    const auto from = static_cast<std::size_t>(random.bits() % static_cast<std::uint64_t>(dim + 1));
    box.shape.push_back(extents[from]);
    box.strides.push_back(strides[from]);
    extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(from));
    strides.erase(strides.begin() + static_cast<std::ptrdiff_t>(from));
  }
  std::size_t last = 0;
  for (int dim = 0; dim < numDims; ++dim) {
    last += static_cast<std::size_t>(std::max<std::int64_t>(0, box.shape[dim] - 1) * box.strides[dim]);
  }
  box.extent = (last + 1) * elemBytes;
  return box;
}

// Each rank writes and reads its own stripe in every part, and keeps a model of the stripes.
void campaign(Communicator& group, std::uint64_t seed, int cases) {
  constexpr std::size_t kStripe = std::size_t{256} << 10;
  const auto n = static_cast<std::size_t>(group.worldSize());
  const Block block = zeroedBlock(group, kStripe * n);
  ASSERT_NE(block, nullptr);
  const auto stripe = kStripe * static_cast<std::size_t>(group.rank());
  std::vector<std::vector<std::uint8_t>> model(n, std::vector<std::uint8_t>(kStripe));
  testing::Random random(seed + static_cast<std::uint64_t>(group.rank()));
  std::vector<std::uint8_t> memory(kStripe + 64);
  expectFine(group.symmetricBarrier());
  for (int i = 0; i < cases; ++i) {
    const auto peer = static_cast<Rank>(random.bits() % n);
    auto& known = model[static_cast<std::size_t>(peer)];
    const Geometry box = randomGeometry(random, kStripe / 2);
    const std::size_t elemBytes = elementBytes(box.dtype);
    if (box.extent > kStripe) {
      continue;
    }
    const std::size_t at = random.bits() % ((kStripe - box.extent) / elemBytes + 1) * elemBytes;
    const PartView there{stripe + at, box.dtype, box.shape, box.strides};
    // The other side lies anywhere, dense.
    TensorView here = TensorView::contiguous(memory.data() + 16, box.dtype, box.shape);
    const std::size_t bytes = static_cast<std::size_t>(numElements(box.shape)) * elemBytes;
    if (random.bits() % 2 == 0) {
      std::vector<std::uint8_t> source(bytes);
      for (auto& each : source) {
        each = static_cast<std::uint8_t>(random.bits() & (box.dtype == DType::kBool ? 1 : 255));
      }
      here.bytes = reinterpret_cast<std::byte*>(source.data());
      expectFine(block->put(peer, there, here, {}));
      std::size_t next = 0;
      forEachElement(box.shape, box.strides, elemBytes, at, [&](std::size_t to) {
        std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(next), elemBytes,
                    known.begin() + static_cast<std::ptrdiff_t>(to));
        next += elemBytes;
      });
      std::ranges::fill(source, std::uint8_t{0xEE});  // the call is over
    } else {
      std::ranges::fill(memory, std::uint8_t{0xAA});
      expectFine(block->get(peer, there, here, {.isNonBlocking = i % 3 == 0}));
      if (i % 3 == 0) {
        expectFine(block->quiet(std::nullopt));
      }
      std::vector<std::uint8_t> wanted;
      forEachElement(box.shape, box.strides, elemBytes, at, [&](std::size_t from) {
        wanted.insert(wanted.end(), known.begin() + static_cast<std::ptrdiff_t>(from),
                      known.begin() + static_cast<std::ptrdiff_t>(from + elemBytes));
      });
      ASSERT_TRUE(std::ranges::equal(std::span(memory).subspan(16, wanted.size()), wanted))
          << "seed " << seed << " case " << i;
      ASSERT_EQ(memory[15], 0xAA);
      ASSERT_EQ(memory[16 + bytes], 0xAA);
    }
    if (random.bits() % 8 == 0) {
      const std::size_t word = random.bits() % (kStripe / 8) * 8;
      std::uint64_t was = 0;
      std::memcpy(&was, known.data() + word, 8);
      const std::uint64_t operand = random.bits();
      EXPECT_EQ(atomicOf(block, peer, stripe + word, DType::kUInt64, WordOp::kXor, operand), was) << "seed " << seed;
      was ^= operand;
      std::memcpy(known.data() + word, &was, 8);
    }
  }
  expectFine(group.symmetricBarrier());
  // The writer of a stripe knows the stripe's bytes: each rank broadcasts all of its model.
  for (Rank writer = 0; writer < group.worldSize(); ++writer) {
    for (Rank owner = 0; owner < group.worldSize(); ++owner) {
      std::vector<std::uint8_t> expected = model[static_cast<std::size_t>(owner)];
      auto work = group.broadcast(
          TensorView::contiguous(expected.data(), DType::kUInt8, {static_cast<std::int64_t>(kStripe)}), writer);
      expectOk(work);
      if (owner == group.rank()) {
        EXPECT_EQ(
            std::memcmp(block->address(owner) + kStripe * static_cast<std::size_t>(writer), expected.data(), kStripe),
            0)
            << "seed " << seed << " writer " << writer;
      }
    }
  }
  expectFine(group.symmetricBarrier());
}

TEST_P(OneSidedAccess, OfAnyGeometryAgreesWithAModel) {
  const std::uint64_t seed = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 11);
  // The number is meant for specs; a case here is many messages, and a rank waits for each.
  const int cases = std::max(50, static_cast<int>(testing::numberFromEnvironment("SHARDWIRE_ORACLE_CASES", 3000) / 20));
  withProcesses(3, [&](Communicator& group) { campaign(group, seed, cases); });
  withThreads(3, [&](Communicator& group) { campaign(group, seed + 100, cases / 3); });
}

// ---- atomics

// Ranks of the owner's host and of other hosts use the same words.
TEST_P(OneSidedAccess, AtomicsOfAllRanksAgree) {
  withProcesses(3, [](Communicator& group) {
    const Block block = zeroedBlock(group, 4096);
    constexpr int kRounds = 100;
    std::uint32_t one = 0;
    const float oneAsFloat = 1.0F;
    std::memcpy(&one, &oneAsFloat, sizeof one);
    for (int i = 0; i < kRounds; ++i) {
      const std::uint64_t turn = atomicOf(block, 2, 0, DType::kInt64, WordOp::kAdd, 1);
      ASSERT_LT(turn, 3U * kRounds);
      // No other rank has this turn.
      EXPECT_EQ(atomicOf(block, 0, 1024 + turn, DType::kUInt8, WordOp::kSwap, 1), 0U) << turn;
      atomicOf(block, 2, 8, DType::kFloat32, WordOp::kAdd, one, 0, false);
      atomicOf(block, 2, 12, DType::kUInt8, WordOp::kAdd, 1, 0, i % 2 == 0);
      atomicOf(block, 2, 13, DType::kUInt8, WordOp::kXor, 255, 0, false);  // the neighbour in the same machine word
      // A lock: 1 + rank of the holder, and a plain word behind it.
      while (atomicOf(block, 1, 16, DType::kInt32, WordOp::kCompareSwap, static_cast<std::uint64_t>(group.rank()) + 1,
                      0) != 0) {
      }
      std::vector<std::uint64_t> value(1);
      expectFine(block->get(1, wordsAt(24, 1), viewOfWords(value), {}));
      ++value[0];
      expectFine(block->put(1, wordsAt(24, 1), viewOfWords(value), {}));
      expectFine(block->quiet(std::nullopt));
      ASSERT_EQ(atomicOf(block, 1, 16, DType::kInt32, WordOp::kSwap, 0), static_cast<std::uint64_t>(group.rank()) + 1);
    }
    expectFine(group.symmetricBarrier());
    EXPECT_EQ(atomicOf(block, 2, 0, DType::kInt64, WordOp::kFetch, 0), 3U * kRounds);
    EXPECT_EQ(atomicOf(block, 2, 12, DType::kUInt8, WordOp::kFetch, 0), (3U * kRounds) % 256);
    EXPECT_EQ(atomicOf(block, 2, 13, DType::kUInt8, WordOp::kFetch, 0), 0U);
    const auto bits = static_cast<std::uint32_t>(atomicOf(block, 2, 8, DType::kFloat32, WordOp::kFetch, 0));
    float sum = 0;
    std::memcpy(&sum, &bits, sizeof sum);
    EXPECT_EQ(sum, 3.0F * kRounds);
    EXPECT_EQ(atomicOf(block, 1, 24, DType::kUInt64, WordOp::kFetch, 0), 3U * kRounds);
    expectFine(group.symmetricBarrier());
  });
}

// ---- order

TEST_P(OneSidedAccess, WhoSeesTheSignalSeesTheBytes) {
  withThreads(2, [](Communicator& group) {
    const Block block = zeroedBlock(group, 80000);
    const Rank peer = 1 - group.rank();
    std::vector<std::uint64_t> values(9000);
    for (std::uint64_t round = 1; round <= 60; ++round) {
      if (group.rank() == 0) {
        std::ranges::fill(values, round);
        expectFine(block->put(peer, wordsAt(64, 9000), viewOfWords(values), {}));
        atomicOf(block, peer, 0, DType::kUInt64, WordOp::kSet, round, 0, false);
      }
      const auto seen = block->waitUntil(0, DType::kUInt64, Comparison::kGe, round, std::nullopt, {});
      ASSERT_TRUE(seen.isOk()) << seen.status().message();
      if (group.rank() == 1) {
        const auto* const here = reinterpret_cast<const std::uint64_t*>(block->address(1) + 64);
        ASSERT_TRUE(std::all_of(here, here + 9000, [&](std::uint64_t each) { return each == round; })) << round;
        atomicOf(block, peer, 0, DType::kUInt64, WordOp::kAdd, 1, 0, false);
      }
    }
  });
}

template <typename F>
Received<F> receivedOf(const Bytes& frame) {
  const auto read = readFrame<F>(frame);
  EXPECT_TRUE(read.has_value());
  return *read;
}

// There is no room for the answer to a get, and the same rank's put comes before there is.
TEST(OneSidedOwner, AGetWhoseAnswerWaitsGivesWhatWasThereBeforeLaterRequests) {
  FakeGroup group(2);
  OneSided owner(group[0].context);
  std::vector<std::uint64_t> memory(16 + BlockWords::sizeFor(2, 1) / sizeof(std::uint64_t));
  std::ranges::fill_n(memory.begin(), 16, 7);
  auto* const at = reinterpret_cast<std::byte*>(memory.data());
  owner.serve(5, std::make_shared<ServedBlock>(at, 128, BlockWords(at + 128, 2)));
  const std::array<std::int64_t, 2> box = {2, 16};  // every second word
  const std::array<std::int64_t, 4> boxAndElements = {2, 16, 1, 2};
  const PartTag part{.block = 5, .offset = 8, .elemBytes = 8, .numDims = 1};
  const Bytes get = frameOf(GetFrame{.part = part, .request = 1}, std::as_bytes(std::span(box)));
  const Bytes put = frameOf(PutFrame{part}, std::as_bytes(std::span(boxAndElements)));
  const Bytes again = frameOf(GetFrame{.part = part, .request = 2}, std::as_bytes(std::span(box)));
  group[0].to(1).maxFrames = 0;
  expectFine(owner.onGet(1, receivedOf<GetFrame>(get)));
  EXPECT_TRUE(owner.isOwing());
  expectFine(owner.onPut(1, receivedOf<PutFrame>(put)));
  expectFine(owner.onGet(1, receivedOf<GetFrame>(again)));
  EXPECT_FALSE(owner.pay());
  group[0].to(1).maxFrames = 64;
  EXPECT_TRUE(owner.pay());
  EXPECT_FALSE(owner.isOwing());
  const auto& sent = group[0].to(1).sent(Lane::kControl);
  ASSERT_EQ(sent.size(), 2U);
  for (const std::uint64_t request : {1U, 2U}) {
    const auto reply = receivedOf<ReplyFrame>(sent[request - 1]);
    EXPECT_EQ(reply.request, request);
    std::array<std::uint64_t, 2> words = {};
    ASSERT_EQ(reply.payload.size(), sizeof words);
    std::memcpy(words.data(), reply.payload.data(), sizeof words);
    EXPECT_EQ(words, request == 1 ? (std::array<std::uint64_t, 2>{7, 7}) : (std::array<std::uint64_t, 2>{1, 2}));
  }
}

// The frame lies in memory shared with the peer, and may change after the checks.
TEST(OneSidedOwner, RefusesABoxThatChangesWhileItIsRead) {
  FakeGroup group(2);
  OneSided owner(group[0].context);
  std::vector<std::uint64_t> memory(16 + BlockWords::sizeFor(2, 1) / sizeof(std::uint64_t));
  auto* const at = reinterpret_cast<std::byte*>(memory.data());
  owner.serve(5, std::make_shared<ServedBlock>(at, 128, BlockWords(at + 128, 2)));
  const PartTag part{.block = 5, .offset = 0, .elemBytes = 8, .numDims = 1};
  const auto writeAt = [](Bytes& frame, std::size_t offset, std::int64_t value) {
    std::memcpy(frame.data() + offset, &value, sizeof value);
  };
  const std::array<std::int64_t, 4> boxAndElements = {2, 8, 1, 2};
  Bytes put = frameOf(PutFrame{part}, std::as_bytes(std::span(boxAndElements)));
  const auto soundPut = receivedOf<PutFrame>(put);
  writeAt(put, kHeadBytes<PutFrame>, 16);  // more elements than the frame has
  EXPECT_EQ(owner.onPut(1, soundPut).code(), StatusCode::kInternal);
  const std::array<std::int64_t, 2> box = {2, 8};
  Bytes get = frameOf(GetFrame{.part = part, .request = 1}, std::as_bytes(std::span(box)));
  const auto soundGet = receivedOf<GetFrame>(get);
  writeAt(get, kHeadBytes<GetFrame> + sizeof(std::int64_t), -8);  // a stride beyond the block
  EXPECT_EQ(owner.onGet(1, soundGet).code(), StatusCode::kInternal);
  EXPECT_EQ(memory[0], 0U);
}

// The owner's program does not call shardwire: the owner's progress thread serves.
TEST_P(OneSidedAccess, NeedsNothingOfTheOwnersProgram) {
  std::atomic<bool> isOver{false};
  withThreads(2, [&](Communicator& group) {
    const Block block = zeroedBlock(group, 1 << 20);
    expectFine(group.symmetricBarrier());
    if (group.rank() == 1) {
      isOver.wait(false);
      return;
    }
    std::vector<std::uint64_t> values(1 << 16, 7);
    std::vector<std::uint64_t> back(1 << 16, 0);
    for (int i = 0; i < 3; ++i) {
      values.back() = static_cast<std::uint64_t>(i);
      expectFine(block->put(1, wordsAt(0, 1 << 16), viewOfWords(values), {}));
      expectFine(block->quiet(std::nullopt));
      EXPECT_TRUE(isAllQuiet());
      expectFine(block->get(1, wordsAt(0, 1 << 16), viewOfWords(back), {}));
      EXPECT_EQ(values, back);
      EXPECT_EQ(atomicOf(block, 1, 0, DType::kUInt64, WordOp::kAdd, 1), 7U);
    }
    isOver = true;
    isOver.notify_all();
  });
}

// A barrier of one group ends what was requested in another.
TEST_P(OneSidedAccess, IsOverAfterABarrierOfAnyGroup) {
  MemoryStore store;
  MemoryStore other;
  std::atomic<int> made{0};
  std::atomic<int> done{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    auto one = Communicator::create(store, rank, 2, optionsFor(GetParam(), rank, seconds(30)), "one");
    auto two = Communicator::create(other, rank, 2, optionsFor(GetParam(), rank, seconds(30)), "two");
    ASSERT_TRUE(one.isOk()) << one.status().message();
    ASSERT_TRUE(two.isOk()) << two.status().message();
    const Block block = zeroedBlock(**one, 1 << 18);
    for (std::uint64_t round = 1; round < 20; ++round) {
      std::vector<std::uint64_t> values(1 << 15, round * 2 + static_cast<std::uint64_t>(rank));
      expectFine(block->put(1 - rank, wordsAt(0, 1 << 15), viewOfWords(values), {}));
      expectFine((*two)->symmetricBarrier());
      EXPECT_EQ(reinterpret_cast<std::uint64_t*>(block->address(rank))[(1 << 15) - 1],
                round * 2 + static_cast<std::uint64_t>(1 - rank));
      expectFine((*two)->symmetricBarrier());
    }
    ++done;
    await(done, 2);
  });
}

// Each rank has a group that fails behind a put, and a later group that is quiet.
TEST(QuietAll, ReturnsTheErrorOfAnEarlierGroup) {
  MemoryStore store;
  MemoryStore other;
  std::atomic<int> made{0};
  std::atomic<int> done{0};
  testing::runRanksAsThreads(2, [&](Rank rank) {
    auto one = Communicator::create(store, rank, 2, optionsFor(Where::kWires, rank, seconds(30)), "one");
    auto two = Communicator::create(other, rank, 2, optionsFor(Where::kWires, rank, seconds(30)), "two");
    ASSERT_TRUE(one.isOk()) << one.status().message();
    ASSERT_TRUE(two.isOk()) << two.status().message();
    const Block block = zeroedBlock(**one, 8);
    ++made;
    await(made, 2);  // an abort would end the making of a rank that has not returned from it
    if (rank == 0) {
      std::vector<std::uint64_t> values(1, 7);
      expectFine(block->put(1, wordsAt(0, 1), viewOfWords(values), {}));
      (*one)->abort("enough");
      EXPECT_EQ(quietAll().code(), StatusCode::kAborted);
      expectFine(quietAll());
    }
    ++done;
    await(done, 2);
  });
}

// ---- giving back

TEST_P(OneSidedAccess, MemoryComesBackWhenAllHaveDroppedIt) {
  withProcesses(3, [](Communicator& group) {
    const SharedHeap* heap = *SharedHeap::instance();
    expectFine(group.symmetricBarrier());
    const std::uint64_t before = heap->usedBytes();
    std::vector<std::uint64_t> values(5000, 3);
    for (int i = 0; i < 50; ++i) {
      Block block = zeroedBlock(group, 120000);
      ASSERT_NE(block, nullptr);
      const PartView mine =
          wordsAt(static_cast<std::size_t>(group.rank()) * 40000, 5000);  // only this rank writes there
      // The messages are still on the way when this rank drops the block.
      for (Rank peer = 0; peer < 3; ++peer) {
        expectFine(block->put(peer, mine, viewOfWords(values), {.isNonBlocking = true}));
      }
      expectFine(block->quiet(std::nullopt));
      expectFine(block->put((group.rank() + 1) % 3, mine, viewOfWords(values), {}));
    }
    for (int i = 0; i < 4000 && (releaseUnheld(), numDeferred() > 0); ++i) {  // the notice comes by frames, or by words
      ::usleep(1000);
    }
    EXPECT_EQ(numDeferred(), 0U);
    EXPECT_EQ(heap->usedBytes(), before);
    expectFine(group.symmetricBarrier());
  });
}

// ---- what is refused

TEST_P(OneSidedAccess, OutsideOfThePartIsRefusedHere) {
  withThreads(2, [](Communicator& group) {
    const Block block = zeroedBlock(group, 64);
    const Rank peer = 1 - group.rank();
    std::vector<std::uint64_t> values(8);
    const TensorView view = viewOfWords(values);
    expectFine(block->put(peer, wordsAt(0, 8), view, {}));
    EXPECT_EQ(block->put(peer, wordsAt(8, 8), view, {}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->get(peer, wordsAt(1 << 20, 8), view, {}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->put(peer, wordsAt(0, 7), view, {}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->put(2, wordsAt(0, 8), view, {}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->put(-1, wordsAt(0, 8), view, {}).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(block->put(peer, {0, DType::kInt64, {8}, {1}}, view, {}).code(), StatusCode::kInvalidArgument);
    const TensorView noStrides{view.bytes, view.dtype, view.shape};
    expectSays(block->put(peer, wordsAt(0, 8), noStrides, {}), StatusCode::kInvalidArgument,
               "put: the tensor of this rank has shape [8] and 0 strides");
    expectSays(block->get(peer, {0, view.dtype, {8}, {}}, view, {}), StatusCode::kInvalidArgument,
               "has shape [8] and 0 strides");
    EXPECT_EQ(block->atomic(peer, 4, DType::kInt64, WordOp::kAdd, 1, 0, true).status().code(), StatusCode::kTypeError);
    EXPECT_EQ(block->atomic(peer, 64, DType::kInt64, WordOp::kAdd, 1, 0, true).status().code(),
              StatusCode::kInvalidArgument);
    EXPECT_EQ(block->atomic(peer, 0, DType::kComplex128, WordOp::kAdd, 1, 0, true).status().code(),
              StatusCode::kTypeError);
    expectFine(group.symmetricBarrier());
    expectFine(block->free(std::nullopt));
    EXPECT_EQ(block->put(peer, wordsAt(0, 8), view, {}).code(), StatusCode::kInvalidArgument);
  });
}

// Requests that a broken peer may send.
TEST(ServedBlock, StaysWithinItsBytes) {
  std::vector<std::byte> memory(64 + BlockWords::sizeFor(2, 1));
  std::byte* const at = memory.data();
  ServedBlock part(at, 64, BlockWords(at + 64, 2));
  std::array<std::byte, 64> out;
  expectFine(part.get({1, 0, 8, {8}, {8}}, out.data()));
  expectFine(part.put({1, 56, 8, {}, {}}, std::span(out).first(8)));
  for (const PartBox& box :
       {PartBox{1, 1, 8, {8}, {8}}, PartBox{1, 64, 1, {}, {}}, PartBox{1, std::uint64_t{1} << 60, 1, {}, {}},
        PartBox{1, 0, 1, {2, 2}, {1, 64}}, PartBox{1, 0, 16, {2}, {64}}}) {
    EXPECT_EQ(part.get(box, out.data()).code(), StatusCode::kInternal);
    EXPECT_EQ(part.put(box, out).code(), StatusCode::kInternal);
  }
  const auto apply = [&](std::uint64_t offset, std::uint32_t op, std::uint32_t dtype) {
    return part.apply({.block = 1, .offset = offset, .op = op, .dtype = dtype}).status().code();
  };
  const auto add = static_cast<std::uint32_t>(WordOp::kAdd);
  const auto word = static_cast<std::uint32_t>(DType::kInt64);
  EXPECT_EQ(apply(56, add, word), StatusCode::kOk);
  EXPECT_EQ(apply(49, add, word), StatusCode::kInternal);  // not aligned
  EXPECT_EQ(apply(57, add, word), StatusCode::kInternal);
  EXPECT_EQ(apply(64, add, word), StatusCode::kInternal);
  EXPECT_EQ(apply(~std::uint64_t{0} - 7, add, word), StatusCode::kInternal);
  EXPECT_EQ(apply(0, kNumWordOps, word), StatusCode::kInternal);
  EXPECT_EQ(apply(0, add, kNumDTypes), StatusCode::kInternal);
  EXPECT_EQ(apply(0, add, static_cast<std::uint32_t>(DType::kComplex128)), StatusCode::kInternal);
}

std::string whereName(const ::testing::TestParamInfo<Where>& info) {
  constexpr std::array<const char*, 3> kNames = {"OneHost", "Wires", "TwoHosts"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, OneSidedAccess, ::testing::Values(Where::kOneHost, Where::kWires, Where::kTwoHosts),
                         whereName);

// ---- when the owner is dead: only a rank that sends requests has an answer to wait for

Status callOf(int kind, Communicator& group, const Block& block) {
  std::vector<std::uint64_t> values(3000);
  switch (kind) {
    case 0:
      return block->get(2, wordsAt(0, 3000), viewOfWords(values), {});
    case 1:
      return block->atomic(2, 0, DType::kUInt64, WordOp::kAdd, 1, 0, true).status();
    case 2: {
      const Status put = block->put(2, wordsAt(0, 3000), viewOfWords(values), {});
      return put.isOk() ? block->quiet(std::nullopt) : put;
    }
    case 3: {
      const auto sent = block->atomic(2, 0, DType::kUInt64, WordOp::kSet, 1, 0, false);
      return sent.isOk() ? group.symmetricBarrier() : sent.status();
    }
    default:
      return block->waitUntil(0, DType::kUInt64, Comparison::kNe, 0, std::nullopt, {}).status();
  }
}

class OwnerGone : public ::testing::TestWithParam<int> {};

TEST_P(OwnerGone, DeathIsNamed) {
  MemoryStore store;
  testing::SharedValue<std::atomic<int>> ready;
  testing::runRanksAsProcesses(
      3,
      [&](Rank rank) {
        auto group = Communicator::create(store, rank, 3, optionsFor(Where::kWires, rank, seconds(30)), "test");
        ASSERT_TRUE(group.isOk()) << group.status().message();
        const Block block = zeroedBlock(**group, 24000);
        expectFine((*group)->symmetricBarrier());
        ready->fetch_add(1);
        if (rank == 2) {
          await(*ready, 3);  // the other ranks have left the barrier
          ::kill(::getpid(), SIGKILL);
        }
        Status status;
        while (status.isOk()) {  // rank 2 may still have served one call
          status = callOf(GetParam(), **group, block);
        }
        EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
        EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
        EXPECT_FALSE(block->put(2, wordsAt(0, 0), TensorView::contiguous(nullptr, DType::kUInt64, {0}), {}).code() ==
                     StatusCode::kPeerFailed);
        (void)quietAll();  // the failure is reported once
        EXPECT_TRUE(isAllQuiet());
        expectFine(quietAll());
      },
      testing::kRankTimeLimit, {2});
}

TEST_P(OwnerGone, StopEndsByTheTimeoutAndIsNamed) {
  MemoryStore store;
  testing::SharedValue<std::atomic<int>> ready;
  testing::SharedValue<std::atomic<pid_t>> stopped;
  testing::SharedValue<std::atomic<int>> done;
  testing::runRanksAsProcesses(3,
                               [&](Rank rank) {
                                 auto group = Communicator::create(
                                     store, rank, 3, optionsFor(Where::kTwoHosts, rank, seconds(30)), "test");
                                 ASSERT_TRUE(group.isOk()) << group.status().message();
                                 const Block block = zeroedBlock(**group, 24000);
                                 expectFine((*group)->symmetricBarrier());
                                 ready->fetch_add(1);
                                 await(*ready, 3);
                                 (*group)->setTimeout(milliseconds(1500));
                                 if (rank == 2) {
                                   stopped->store(::getpid());
                                   ::raise(SIGSTOP);
                                   return;
                                 }
                                 while (stopped->load() == 0) {
                                   ::usleep(100);
                                 }
                                 testing::awaitStopped(stopped->load());
                                 if (rank == 0) {
                                   const Status status = callOf(GetParam(), **group, block);
                                   EXPECT_EQ(status.code(), StatusCode::kTimeout) << status.message();
                                   EXPECT_NE(status.message().find("2"), std::string::npos) << status.message();
                                   ::kill(stopped->load(), SIGKILL);
                                   done->store(1);
                                 }
                                 while (done->load() == 0) {
                                   ::usleep(1000);
                                 }
                               },
                               testing::kRankTimeLimit, {2});
}

std::string callName(const ::testing::TestParamInfo<int>& info) {
  constexpr std::array<const char*, 5> kNames = {"Get", "Atomic", "Quiet", "Barrier", "SignalWait"};
  return kNames[static_cast<std::size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, OwnerGone, ::testing::Values(0, 1, 2, 3, 4), callName);

}  // namespace
}  // namespace shardwire::internal
