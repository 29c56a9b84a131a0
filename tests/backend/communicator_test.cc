// Collectives, send/recv and compileOp between ranks that are threads, against plain loops. First the collectives,
// their memory, and many ranks; then messages; then tensors with gaps; then compiled ops: data, errors in specs, absent
// ranks, wrong tensors, runs in flight.
#include "shardwire/communicator.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "tests/backend/thread_group.h"
#include "tests/support/random.h"

namespace shardwire::internal {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Short (one frame), long (several segments), nothing at all.
const std::vector<std::size_t> kSizes = {0, 1, 7, 1000, 1025, 40000, 300000};

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, AllReduceSumsInPlace) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    for (const std::size_t size : kSizes) {
      auto mine = patternOf(group.rank(), size);
      expectOk(group.allReduce(viewOf(mine), ReduceOp::kSum));
      std::vector<std::int64_t> expected(size);
      for (Rank r = 0; r < n; ++r) {
        const auto theirs = patternOf(r, size);
        std::transform(expected.begin(), expected.end(), theirs.begin(), expected.begin(), std::plus<>());
      }
      ASSERT_EQ(mine, expected) << "size " << size;
    }
  });
}

TEST_P(Collectives, ReduceWritesTheRootOnly) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    for (const std::size_t size : kSizes) {
      const Rank root = static_cast<Rank>(size % static_cast<std::size_t>(n));
      auto mine = patternOf(group.rank(), size);
      expectOk(group.reduce(viewOf(mine), root, ReduceOp::kMax));
      ASSERT_EQ(mine, patternOf(group.rank() == root ? n - 1 : group.rank(), size)) << "size " << size;
    }
  });
}

TEST_P(Collectives, BroadcastCopiesTheRoot) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    for (const std::size_t size : kSizes) {
      for (Rank root = 0; root < n; ++root) {
        auto mine = patternOf(group.rank(), size, root);
        expectOk(group.broadcast(viewOf(mine), root));
        ASSERT_EQ(mine, patternOf(root, size, root)) << "size " << size;
      }
    }
  });
}

TEST_P(Collectives, GatherScatterAndAllGatherAgreeWithTheirNames) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    for (const std::size_t size : kSizes) {
      const Rank root = n - 1;
      auto mine = patternOf(group.rank(), size);
      std::vector<std::vector<std::int64_t>> all(static_cast<std::size_t>(n), std::vector<std::int64_t>(size));
      std::vector<TensorView> views;
      for (auto& one : all) {
        views.push_back(viewOf(one));
      }
      expectOk(group.allGather(viewOf(mine), views));
      for (Rank r = 0; r < n; ++r) {
        ASSERT_EQ(all[static_cast<std::size_t>(r)], patternOf(r, size));
      }
      for (auto& one : all) {
        std::fill(one.begin(), one.end(), -1);
      }
      const bool isRoot = group.rank() == root;
      expectOk(group.gather(viewOf(mine), isRoot ? views : std::vector<TensorView>(), root));
      for (Rank r = 0; r < n; ++r) {
        ASSERT_EQ(all[static_cast<std::size_t>(r)], isRoot ? patternOf(r, size) : std::vector<std::int64_t>(size, -1));
      }
      std::vector<std::int64_t> share(size);
      expectOk(group.scatter(viewOf(share), isRoot ? views : std::vector<TensorView>(), root));
      ASSERT_EQ(share, patternOf(group.rank(), size));
    }
  });
}

TEST_P(Collectives, ReduceScatterAndAllToAllMoveTheRightParts) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    for (const std::size_t size : kSizes) {
      std::vector<std::vector<std::int64_t>> parts;
      std::vector<std::vector<std::int64_t>> received;
      std::vector<TensorView> inputs;
      std::vector<TensorView> outputs;
      for (Rank r = 0; r < n; ++r) {
        parts.push_back(patternOf(group.rank(), size, r * 17));
        received.emplace_back(size + static_cast<std::size_t>(r));  // uneven: rank r sends size + r elements
      }
      std::vector<std::int64_t> sum(size);
      for (auto& part : parts) {
        inputs.push_back(viewOf(part));
      }
      expectOk(group.reduceScatter(viewOf(sum), inputs, ReduceOp::kSum));
      std::vector<std::int64_t> expected(size);
      for (Rank r = 0; r < n; ++r) {
        const auto theirs = patternOf(r, size, group.rank() * 17);
        std::transform(expected.begin(), expected.end(), theirs.begin(), expected.begin(), std::plus<>());
      }
      ASSERT_EQ(sum, expected);

      inputs.clear();
      for (Rank r = 0; r < n; ++r) {
        parts[static_cast<std::size_t>(r)] =
            patternOf(group.rank(), size + static_cast<std::size_t>(group.rank()), r * 13);
        inputs.push_back(viewOf(parts[static_cast<std::size_t>(r)]));
        outputs.push_back(viewOf(received[static_cast<std::size_t>(r)]));
      }
      expectOk(group.allToAll(outputs, inputs));
      for (Rank r = 0; r < n; ++r) {
        ASSERT_EQ(received[static_cast<std::size_t>(r)],
                  patternOf(r, size + static_cast<std::size_t>(r), group.rank() * 13));
      }
    }
  });
}

TEST_P(Collectives, ManyInFlightFinishInAnyOrderOfWaiting) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    constexpr int kOps = 40;
    std::vector<std::vector<std::int64_t>> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < kOps; ++i) {
      tensors.push_back(patternOf(group.rank(), static_cast<std::size_t>(1 + i * 997), i));
    }
    for (int i = 0; i < kOps; ++i) {
      auto work = group.allReduce(viewOf(tensors[static_cast<std::size_t>(i)]), ReduceOp::kMax);
      ASSERT_TRUE(work.isOk()) << work.status().message();
      works.push_back(*work);
    }
    for (int i = kOps - 1; i >= 0; --i) {
      ASSERT_TRUE(works[static_cast<std::size_t>(i)]->wait().isOk());
      ASSERT_EQ(tensors[static_cast<std::size_t>(i)], patternOf(n - 1, static_cast<std::size_t>(1 + i * 997), i));
    }
  });
}

// Long reductions read their sources in place: the memory kept for the next call of a shape is small, however many
// shapes there are.
// A short call whose first tensor is that of the call before, with the same arguments or with others.
struct Repeatable {
  std::int64_t kind = 0;
  bool isWide = false;  // kInt64, else kInt32
  ReduceOp op = ReduceOp::kSum;
  Rank root = 0;
  std::int64_t elems = 1;
  std::int64_t first = 0;  // of the memory, in units of 8 bytes
};

void redrawOne(testing::Random& random, int worldSize, Repeatable* what) {
  switch (random.between(0, 5)) {
    case 0:
      what->kind = random.between(0, 5);
      break;
    case 1:
      what->isWide = !what->isWide;
      break;
    case 2:
      what->op = random.chance(50) ? ReduceOp::kSum : ReduceOp::kMax;
      break;
    case 3:
      what->root = static_cast<Rank>(random.between(0, worldSize - 1));
      break;
    case 4:
      what->elems = random.between(1, 5);
      break;
    default:
      what->first = random.between(0, 1);
  }
}

template <typename T>
void callAndCompare(Communicator& group, const Repeatable& what, std::vector<std::int64_t>& memory, int step) {
  const int n = group.worldSize();
  const auto numIn = static_cast<std::size_t>(n * what.elems);
  auto* const bytes = reinterpret_cast<T*>(memory.data() + what.first);
  const std::span<T> in(bytes, numIn);
  const std::span<T> out(bytes + numIn, numIn);
  const auto valueOf = [&](Rank rank, std::size_t i) {
    return static_cast<T>(step * 31 + rank * 7 + static_cast<int>(i));
  };
  for (std::size_t i = 0; i < numIn; ++i) {
    in[i] = valueOf(group.rank(), i);
    out[i] = -1;
  }
  const auto reducedAt = [&](std::size_t i) {
    T result = valueOf(0, i);
    for (Rank rank = 1; rank < n; ++rank) {
      result = what.op == ReduceOp::kSum ? result + valueOf(rank, i) : std::max(result, valueOf(rank, i));
    }
    return result;
  };
  const auto viewAt = [&](std::span<T> part, int index) {
    return TensorView::contiguous(part.data() + index * what.elems, what.isWide ? DType::kInt64 : DType::kInt32,
                                  {what.elems});
  };
  std::vector<TensorView> ins;
  std::vector<TensorView> outs;
  for (int index = 0; index < n; ++index) {
    ins.push_back(viewAt(in, index));
    outs.push_back(viewAt(out, index));
  }
  const auto elems = static_cast<std::size_t>(what.elems);
  const auto self = static_cast<std::size_t>(group.rank());
  const auto expectEach = [&](std::span<T> found, std::size_t count, const auto& expected) {
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(found[i], expected(i)) << "step " << step << ", kind " << what.kind << ", element " << i;
    }
  };
  switch (what.kind) {
    case 0:
      expectOk(group.allReduce(ins[0], what.op));
      expectEach(in, elems, reducedAt);
      break;
    case 1:
      expectOk(group.broadcast(ins[0], what.root));
      expectEach(in, elems, [&](std::size_t i) { return valueOf(what.root, i); });
      break;
    case 2:
      expectOk(group.reduce(ins[0], what.root, what.op));
      expectEach(in, elems,
                 [&](std::size_t i) { return group.rank() == what.root ? reducedAt(i) : valueOf(group.rank(), i); });
      break;
    case 3:
      expectOk(group.allGather(ins[0], outs));
      expectEach(out, numIn, [&](std::size_t i) { return valueOf(static_cast<Rank>(i / elems), i % elems); });
      break;
    case 4:
      expectOk(group.reduceScatter(outs[0], ins, what.op));
      expectEach(out, elems, [&](std::size_t i) { return reducedAt(self * elems + i); });
      break;
    default:
      expectOk(group.allToAll(outs, ins));
      expectEach(out, numIn,
                 [&](std::size_t i) { return valueOf(static_cast<Rank>(i / elems), self * elems + i % elems); });
  }
}

TEST_P(Collectives, ARepeatedCallIsToldApartFromACallWithOtherArguments) {
  const int n = GetParam();
  const std::uint64_t seed = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", std::random_device()());
  withGroup(n, [&](Communicator& group) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    testing::Random random(seed);
    std::vector<std::int64_t> memory(static_cast<std::size_t>(10 * n + 1));
    Repeatable what;
    for (int step = 0; step < 600; ++step) {
      for (auto left = random.chance(40) ? random.between(1, 2) : 0; left > 0; --left) {
        redrawOne(random, n, &what);
      }
      if (what.isWide) {
        callAndCompare<std::int64_t>(group, what, memory, step);
      } else {
        callAndCompare<std::int32_t>(group, what, memory, step);
      }
    }
  });
}

TEST(Collectives, AListThatRepeatsInPartIsChecked) {
  withGroup(2, [](Communicator& group) {
    std::vector<std::int64_t> in(1);
    std::vector<std::int64_t> out(2);
    const auto viewAt = [](std::int64_t* at) { return TensorView::contiguous(at, DType::kInt64, {1}); };
    const std::vector<TensorView> outs = {viewAt(out.data()), viewAt(out.data() + 1)};
    for (int step = 0; step < 4; ++step) {
      expectOk(group.allGather(viewAt(in.data()), outs));
    }
    const std::vector<TensorView> overlapping = {outs[0], outs[0]};
    EXPECT_EQ(group.allGather(viewAt(in.data()), overlapping).status().code(), StatusCode::kInvalidArgument);
    const std::vector<TensorView> tooFew = {outs[0]};
    EXPECT_EQ(group.allGather(viewAt(in.data()), tooFew).status().code(), StatusCode::kInvalidArgument);
    expectOk(group.allGather(viewAt(in.data()), outs));
  });
}

TEST(Memory, OfReductionsOfManyShapesIsSmall) {
  constexpr std::size_t kElements = std::size_t{64} << 10;  // 512 KiB: a segment for each rank at least
  constexpr std::size_t kShapes = 20;
  const auto inUse = [] {
    const struct mallinfo2 info = ::mallinfo2();
    return info.uordblks + info.hblkhd;
  };
  std::atomic<std::size_t> before{0};
  withGroup(4, [&](Communicator& group) {
    std::vector<std::int64_t> values(kElements + kShapes * 64, 1);
    for (std::size_t shape = 0; shape <= kShapes; ++shape) {
      const auto view =
          TensorView::contiguous(values.data(), DType::kInt64, {static_cast<std::int64_t>(kElements + shape * 64)});
      expectOk(group.allReduce(view, ReduceOp::kMax));
      if (shape == 0 || shape == kShapes) {
        expectOk(group.barrier());
        if (group.rank() == 0 && shape == 0) {
          before = inUse();
        } else if (group.rank() == 0) {
          EXPECT_LT(inUse(), before + kShapes * (std::size_t{256} << 10));
        }
        expectOk(group.barrier());
      }
    }
  });
}

TEST_P(Collectives, FinishWithoutAnyoneWaiting) {
  const int n = GetParam();
  withGroup(n, [&](Communicator& group) {
    auto mine = patternOf(group.rank(), 500000);
    std::atomic<bool> called{false};
    auto work = group.allReduce(viewOf(mine), ReduceOp::kMax);
    ASSERT_TRUE(work.isOk());
    (*work)->onDone([&](const Status& status) { called = status.isOk(); });
    const auto until = Clock::now() + seconds(10);
    while (!called && Clock::now() < until) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_TRUE(called);
    ASSERT_EQ(mine, patternOf(n - 1, 500000));
  });
}

TEST_P(Collectives, ReleaseTheirTensorsAndRunCallbacksOnceWhetherTheyEndInTheirCallOrLater) {
  withGroup(GetParam(), [](Communicator& group) {
    for (const std::size_t count : {1U, 1000U, 500000U}) {
      for (int i = 0; i < 20; ++i) {
        std::vector<std::int64_t> values(count, group.rank());
        const auto kept = std::make_shared<int>(i);
        auto work = group.allReduce(viewOf(values), ReduceOp::kMax, {.keepAlive = kept});
        ASSERT_TRUE(work.isOk());
        std::atomic<int> numCalls{0};
        (*work)->onDone([&](const Status& status) { numCalls += status.isOk() ? 1 : 100; });
        const auto until = Clock::now() + seconds(10);
        while ((numCalls == 0 || kept.use_count() > 1) && Clock::now() < until) {
          std::this_thread::yield();
        }
        ASSERT_EQ(numCalls, 1) << count;
        ASSERT_EQ(kept.use_count(), 1) << count;
        ASSERT_EQ(values, std::vector<std::int64_t>(count, group.worldSize() - 1));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 5));

// By the tree of rank_tree.h up to a frame; in place, so no rank may read an input after the owner has overwritten the
// input.
TEST(ManyRanks, AllReduceIsTheSumInRankOrderOnEveryRank) {
  constexpr int kRanks = 33;
  const auto valueOf = [](Rank rank, std::size_t i) {
    return 1.0F / static_cast<float>(3 + rank * 7 + static_cast<Rank>(i));
  };
  withGroup(kRanks, [&](Communicator& group) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{0}, std::size_t{33}, std::size_t{2048}}) {
      std::vector<float> expected(size);
      std::vector<float> mine(size);
      for (std::size_t i = 0; i < size; ++i) {
        float sum = valueOf(0, i);
        for (Rank rank = 1; rank < kRanks; ++rank) {
          sum += valueOf(rank, i);
        }
        expected[i] = sum;
      }
      for (int repeat = 0; repeat < 3; ++repeat) {
        for (std::size_t i = 0; i < size; ++i) {
          mine[i] = valueOf(group.rank(), i);
        }
        const auto view = TensorView::contiguous(mine.data(), DType::kFloat32, {static_cast<std::int64_t>(size)});
        expectOk(group.allReduce(view, ReduceOp::kSum));
        ASSERT_EQ(mine, expected) << size << " elements";
      }
    }
  });
}

TEST(PointToPoint, MatchesByTagAndInOrder) {
  withGroup(2, [&](Communicator& group) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{3000}, std::size_t{400000}}) {
      if (group.rank() == 0) {
        auto a = patternOf(0, size, 1);
        auto b = patternOf(0, size, 2);
        auto c = patternOf(0, size, 3);
        auto wa = group.send(viewOf(a), 1, 7);
        auto wb = group.send(viewOf(b), 1, 8);
        auto wc = group.send(viewOf(c), 1, 7);
        expectOk(wa);
        expectOk(wb);
        expectOk(wc);
      } else {
        std::vector<std::int64_t> a(size);
        std::vector<std::int64_t> b(size);
        std::vector<std::int64_t> c(size);
        expectOk(group.recv(viewOf(b), 0, 8));
        expectOk(group.recv(viewOf(a), 0, 7));
        auto work = group.recv(viewOf(c), kAnySource, 7);
        expectOk(work);
        EXPECT_EQ((*work)->sourceRank(), 0);
        ASSERT_EQ(a, patternOf(0, size, 1));
        ASSERT_EQ(b, patternOf(0, size, 2));
        ASSERT_EQ(c, patternOf(0, size, 3));
      }
    }
  });
}

TEST(PointToPoint, DoesNotBlockCollectivesNorIsBlockedByThem) {
  withGroup(2, [&](Communicator& group) {
    constexpr std::size_t kSize = 300000;
    auto message = patternOf(group.rank(), kSize);
    std::vector<std::int64_t> received(kSize);
    auto sum = patternOf(group.rank(), kSize);
    const Rank peer = 1 - group.rank();
    auto send =
        group.send(viewOf(message), peer, 0);  // the peer does not receive the message before the collective is over
    expectOk(group.allReduce(viewOf(sum), ReduceOp::kMax));
    expectOk(group.recv(viewOf(received), peer, 0));
    expectOk(send);
    ASSERT_EQ(received, patternOf(peer, kSize));
  });
}

// A plan of random messages that all ranks follow in order: sends and receives that are waited for at once or much
// later, short and long, so that messages end inside their call, become operations, and overtake each other's tags.
TEST(PointToPoint, RandomMessagesKeepTheOrderOfTheirTags) {
  struct Message {
    Rank from, to;
    int tag;
    std::size_t size;
    bool waitsLater;
  };
  const std::uint64_t first = testing::numberFromEnvironment("SHARDWIRE_ORACLE_SEED", 20261128);
  for (std::uint64_t seed = first; seed < first + 20; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
    const int n = 2 + below(2);
    std::vector<Message> plan;
    for (int i = 0; i < 300; ++i) {
      const Rank from = below(static_cast<std::uint64_t>(n));
      const Rank to = (from + 1 + below(static_cast<std::uint64_t>(n - 1))) % n;
      const std::size_t sizes[] = {1, 16, 1000, 1025, 4000, 5000};
      plan.push_back({from, to, below(3), sizes[below(6)], below(3) == 0});
    }
    for (const int recordedOps : {0, 64}) {
      Options options = testOptions();
      options.recordedOps = recordedOps;
      withGroup(
          n,
          [&](Communicator& group) {
            std::vector<std::vector<std::int64_t>> values(plan.size());
            std::vector<std::pair<std::size_t, Result<WorkPtr>>> pending;
            const auto check = [&](std::size_t i) {
              if (plan[i].to == group.rank()) {
                ASSERT_EQ(values[i], patternOf(plan[i].from, plan[i].size, static_cast<std::int64_t>(i)))
                    << "SHARDWIRE_ORACLE_SEED=" << seed << ", message " << i;
              }
            };
            const auto waitForAll = [&] {
              for (auto& [i, work] : pending) {
                expectOk(work);
                check(i);
              }
              pending.clear();
            };
            for (std::size_t i = 0; i < plan.size(); ++i) {
              const Message& message = plan[i];
              if (message.from == group.rank()) {
                values[i] = patternOf(message.from, message.size, static_cast<std::int64_t>(i));
                pending.emplace_back(i, group.send(viewOf(values[i]), message.to, message.tag));
              } else if (message.to == group.rank()) {
                values[i].resize(message.size);
                Result<WorkPtr> work = group.recv(viewOf(values[i]), message.from, message.tag);
                if (message.waitsLater) {
                  pending.emplace_back(i, std::move(work));
                } else {
                  expectOk(work);
                  EXPECT_EQ((*work)->sourceRank(), message.from);
                  check(i);
                }
              }
              if (i % 50 == 49) {
                waitForAll();
              }
            }
            waitForAll();
          },
          options);
    }
  }
}

// Rank 0 always finds the next message of rank 1 in the lane. After each, rank 2 must have room for another message,
// although its messages are more than a lane holds.
TEST(PointToPoint, AStreamOfOnePeerHoldsUpNoOtherPeer) {
  constexpr int kStream = 300, kOthers = 100;
  std::atomic<bool> isStreamSent{false};
  std::atomic<int> numOthers{0};
  const auto waitUntil = [](const auto& isSo) {
    const auto until = std::chrono::steady_clock::now() + seconds(10);
    while (!isSo() && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    return isSo();
  };
  withGroup(3, [&](Communicator& group) {
    std::vector<std::int64_t> small(8), large(1000);
    if (group.rank() == 1) {
      for (int i = 0; i < kStream; ++i) {
        expectOk(group.send(viewOf(small), 0, 0));
      }
      isStreamSent = true;
      return;
    }
    ASSERT_TRUE(waitUntil([&] { return isStreamSent.load(); }));
    if (group.rank() == 2) {
      for (int i = 0; i < kOthers; ++i) {
        expectOk(group.send(viewOf(large), 0, 0));
        ++numOthers;
      }
      return;
    }
    for (int i = 0; i < kStream; ++i) {
      const int before = numOthers;
      expectOk(group.recv(viewOf(small), 1, 0));
      ASSERT_TRUE(waitUntil([&] { return numOthers > before || numOthers == kOthers; })) << "message " << i;
    }
    EXPECT_EQ(numOthers, kOthers);
    for (int i = 0; i < kOthers; ++i) {
      expectOk(group.recv(viewOf(large), 2, 0));
    }
  });
}

TEST(PointToPoint, ACallbackOfAMessageThatEndedInItsCallRunsAtOnce) {
  withGroup(2, [](Communicator& group) {
    std::vector<std::int64_t> value = {group.rank()};
    for (int i = 0; i < 3; ++i) {
      auto work = group.rank() == 0 ? group.send(viewOf(value), 1, 0) : group.recv(viewOf(value), 0, 0);
      expectOk(work);
      int numCalls = 0;
      (*work)->onDone([&](const Status& status) { numCalls += status.isOk() ? 1 : 100; });
      EXPECT_EQ(numCalls, 1);
      EXPECT_EQ((*work)->sourceRank(), group.rank() == 0 ? -1 : 0);
    }
  });
}

TEST(PointToPoint, RefusesOneselfAndUnknownRanks) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(1);
    EXPECT_EQ(group.send(viewOf(values), group.rank(), 0).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(group.recv(viewOf(values), 2, 0).status().code(), StatusCode::kInvalidArgument);
  });
}

TEST(NonContiguous, TensorsArePackedAndUnpacked) {
  withGroup(3, [&](Communicator& group) {
    auto storage = patternOf(group.rank(), 600);
    // Every third element of each of ten rows.
    const TensorView strided{reinterpret_cast<std::byte*>(storage.data()), DType::kInt64, {10, 20}, {60, 3}};
    expectOk(group.allReduce(strided, ReduceOp::kMax));
    const auto largest = patternOf(2, 600);
    const auto own = patternOf(group.rank(), 600);
    for (std::size_t i = 0; i < storage.size(); ++i) {
      ASSERT_EQ(storage[i], i % 3 == 0 ? largest[i] : own[i]) << i;
    }
  });
}

TEST(NonContiguous, ATensorWithoutItsStridesIsRefused) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(8, 1);
    const TensorView whole = viewOf(values);
    const TensorView bare{reinterpret_cast<std::byte*>(values.data()), DType::kInt64, {8}};
    const TensorView many{reinterpret_cast<std::byte*>(values.data()), DType::kInt64, {8}, {1, 1}};
    const Rank peer = 1 - group.rank();
    for (const TensorView& wrong : {bare, many}) {
      const std::string says =
          "has shape [8] and " + std::to_string(wrong.strides.size()) + " strides: give one stride per dimension";
      expectSays(group.allReduce(wrong, ReduceOp::kSum).status(), StatusCode::kInvalidArgument, says);
      expectSays(group.broadcast(wrong, 0).status(), StatusCode::kInvalidArgument, says);
      expectSays(group.send(wrong, peer, 0).status(), StatusCode::kInvalidArgument, says);
      expectSays(group.recv(wrong, peer, 0).status(), StatusCode::kInvalidArgument, says);
      const std::string rank = std::to_string(group.rank());
      expectSays(group.allGather(whole, std::vector{whole, wrong}).status(), StatusCode::kInvalidArgument,
                 "all_gather: outputs[1] of rank " + rank + ": a tensor " + says);
      expectSays(group.allGather(wrong, std::vector{whole, whole}).status(), StatusCode::kInvalidArgument,
                 "all_gather: a tensor " + says);
    }
    expectOk(group.allReduce(whole, ReduceOp::kSum));
    EXPECT_EQ(values, std::vector<std::int64_t>(8, 2));
  });
}

TEST(Collectives, TensorsThatCannotBeAreRefused) {
  withGroup(2, [&](Communicator& group) {
    std::vector<std::int64_t> values(8, 1);
    const TensorView whole = viewOf(values);
    struct Case {
      Dims shape;
      Dims strides;
      DType dtype;
      const char* says;
    };
    const auto unknown = static_cast<DType>(77);
    for (const Case& wrong : {Case{{-4}, {1}, DType::kInt64, "of shape [-4] has a negative extent"},
                              Case{{-4, -4}, {-4, 1}, DType::kInt64, "of shape [-4, -4] has a negative extent"},
                              Case{{3, 6148914691236517206}, {0, 0}, DType::kInt64, "more bytes than any memory has"},
                              Case{{8}, {1}, unknown, "has the dtype number 77; there are 0 to 25"}}) {
      const TensorView view{whole.bytes, wrong.dtype, wrong.shape, wrong.strides};
      const std::vector<TensorView> list(2, view);
      for (const Status& found :
           {group.allReduce(view, ReduceOp::kSum).status(), group.broadcast(view, 0).status(),
            group.send(view, 1 - group.rank(), 0).status(), group.recv(view, 1 - group.rank(), 0).status(),
            group.allToAll(list, list).status(), group.allGather(view, list).status(),
            group.reduceScatter(view, list, ReduceOp::kSum).status(), group.gather(view, list, group.rank()).status(),
            group.scatter(view, list, group.rank()).status()}) {
        expectSays(found, StatusCode::kInvalidArgument, wrong.says);
      }
    }
    expectOk(group.allReduce(whole, ReduceOp::kSum));
    EXPECT_EQ(values, std::vector<std::int64_t>(8, 2));
  });
}

// ---- compileOp

LocalSpec rowsSpec(Rank rank, int n, std::int64_t rows, bool transposed) {
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{rows * n, rows * n}, .dtype = DType::kInt64});
  const auto whole = rows * n;
  LocalTensor byRow{.localShape = {rows, whole},
                    .slices = {{.slice = {{rank * rows, 0}, {rows, whole}}, .localOffset = {0, 0}}}};
  LocalTensor byColumn{.localShape = {whole, rows},
                       .slices = {{.slice = {{0, rank * rows}, {whole, rows}}, .localOffset = {0, 0}}}};
  spec.inputs.push_back(transposed ? byColumn : byRow);
  spec.outputs.push_back(transposed ? byRow : byColumn);
  return spec;
}

void runReshape(Communicator& group, std::int64_t rows) {
  const int n = group.worldSize();
  auto op = group.compileOp(rowsSpec(group.rank(), n, rows, false));
  ASSERT_TRUE(op.isOk()) << op.status().message();
  const std::int64_t whole = rows * n;
  std::vector<std::int64_t> input(static_cast<std::size_t>(rows * whole));
  std::iota(input.begin(), input.end(), group.rank() * rows * whole);
  std::vector<std::int64_t> output(input.size(), -1);
  const TensorView in = TensorView::contiguous(input.data(), DType::kInt64, {rows, whole});
  const TensorView out = TensorView::contiguous(output.data(), DType::kInt64, {whole, rows});
  for (int repeat = 0; repeat < 3; ++repeat) {
    std::fill(output.begin(), output.end(), -1);
    expectOk((*op)->run({&in, 1}, {&out, 1}));
    for (std::int64_t i = 0; i < whole; ++i) {
      for (std::int64_t j = 0; j < rows; ++j) {
        ASSERT_EQ(output[static_cast<std::size_t>(i * rows + j)], i * whole + group.rank() * rows + j);
      }
    }
  }
}

TEST(CompileOp, ReshapesRowsToColumns) {
  for (const int n : {1, 2, 4}) {
    withGroup(n, [](Communicator& group) {
      runReshape(group, 3);
      runReshape(group, 200);
    });
  }
}

TEST(CompileOp, StagedAndTinyRingsGiveTheSame) {
  Options options = testOptions();
  options.ringBytes = 16 << 10;
  options.ordinaryPath = OrdinaryPath::kStaged;
  options.inlineBytes = 0;
  withGroup(
      3, [](Communicator& group) { runReshape(group, 100); }, options);
}

TEST(CompileOp, ABadSpecOnOneRankFailsEveryRankWithTheSameText) {
  std::mutex mutex;
  std::vector<std::string> texts;
  withGroup(3, [&](Communicator& group) {
    LocalSpec spec = rowsSpec(group.rank(), 3, 2, false);
    if (group.rank() == 1) {
      spec.inputs[0].slices[0].slice.offset = {100, 0};
    }
    auto op = group.compileOp(spec);
    ASSERT_FALSE(op.isOk());
    {
      std::lock_guard lock(mutex);
      texts.push_back(op.status().message());
    }
    runReshape(group, 2);  // the group is usable afterwards
  });
  ASSERT_EQ(texts.size(), 3u);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_NE(texts[0].find("rank 1"), std::string::npos) << texts[0];
}

TEST(CompileOp, ARankThatDoesNotCallIsNamedAndTheGroupStaysUsable) {
  std::atomic<int> started{0};
  withGroup(3, [&](Communicator& group) {
    std::vector<std::int64_t> word = {7};
    const auto before = Clock::now();  // ahead of the meeting: the rank that leaves the meeting first ends both waits
    if (group.rank() == 2) {
      // The messages of ranks 0 and 1 arrive after the notice that the two gave up; a counter alone could run ahead of
      // the notice.
      expectOk(group.recv(viewOf(word), 0, 0));
      expectOk(group.recv(viewOf(word), 1, 0));
    } else {
      ++started;
      await(started, 2);
    }
    auto op = group.compileOp(rowsSpec(group.rank(), 3, 2, false), seconds(2));
    if (group.rank() != 2) {
      expectOk(group.send(viewOf(word), 2, 0));
    }
    ASSERT_FALSE(op.isOk());
    EXPECT_EQ(op.status().code(), StatusCode::kTimeout);
    if (group.rank() != 2) {
      EXPECT_NE(op.status().message().find("rank 2 did not arrive"), std::string::npos) << op.status().message();
      const auto took = Clock::now() - before;
      EXPECT_GE(took, milliseconds(1950));  // by the clock of whichever of the two came first
      EXPECT_LE(took, seconds(10));         // not the group's 20 s
    } else {
      EXPECT_NE(op.status().message().find("was given up by rank"), std::string::npos) << op.status().message();
    }
    runReshape(group, 2);
  });
}

// More ranks than exchange specs with everybody: by rank 0 and down a tree (backend/exec/exchange.cc).

TEST(CompileOp, ReshapesAmongManyRanks) {
  for (const int n : {17, 33}) {
    withGroup(n, [](Communicator& group) {
      runReshape(group, 1);
      runReshape(group, 3);
    });
  }
}

// Each spec is longer than a frame of 16 KiB, and all together are longer than a lane.
TEST(CompileOp, SpecsOfManyRanksMayBeLongerThanAFrame) {
  constexpr int kRanks = 17;
  constexpr std::int64_t kPieces = 50;
  withGroup(kRanks, [](Communicator& group) {
    const auto spreadOver = [](Rank rank) {  // piece p of rank r is element p * kRanks + r
      LocalTensor tensor{.localShape = {kPieces}};
      for (std::int64_t p = 0; p < kPieces; ++p) {
        tensor.slices.push_back({.slice = {{p * kRanks + rank}, {1}}, .localOffset = {p}});
      }
      return tensor;
    };
    const Rank next = (group.rank() + 1) % kRanks;
    LocalSpec spec;
    spec.tensors.push_back({.name = std::string(20000, 'w'), .shape = Dims{kPieces * kRanks}, .dtype = DType::kInt64});
    spec.inputs.push_back(spreadOver(group.rank()));
    spec.outputs.push_back(spreadOver(next));
    auto op = group.compileOp(spec);
    ASSERT_TRUE(op.isOk()) << op.status().message();
    auto input = patternOf(group.rank(), kPieces);
    std::vector<std::int64_t> output(kPieces);
    const TensorView in = viewOf(input);
    const TensorView out = viewOf(output);
    expectOk((*op)->run({&in, 1}, {&out, 1}));
    EXPECT_EQ(output, patternOf(next, kPieces));
  });
}

TEST(CompileOp, ABadSpecAmongManyRanksFailsEveryRankWithTheSameText) {
  std::mutex mutex;
  std::vector<std::string> texts;
  withGroup(33, [&](Communicator& group) {
    LocalSpec spec = rowsSpec(group.rank(), 33, 1, false);
    if (group.rank() == 20) {
      spec.inputs[0].slices[0].slice.offset = {100, 0};
    }
    auto op = group.compileOp(spec);
    ASSERT_FALSE(op.isOk());
    {
      std::lock_guard lock(mutex);
      texts.push_back(op.status().message());
    }
    runReshape(group, 1);  // the group is usable afterwards
  });
  ASSERT_EQ(texts.size(), 33u);
  EXPECT_EQ(std::count(texts.begin(), texts.end(), texts[0]), 33);
  EXPECT_NE(texts[0].find("rank 20"), std::string::npos) << texts[0];
}

// An absent rank to which all blobs are sent, one on the way of other blobs, and one that only receives.
TEST(CompileOp, ARankOfManyThatDoesNotCallIsNamedAndTheGroupStaysUsable) {
  for (const auto& [n, absent] : {std::pair{17, 2}, std::pair{33, 8}, std::pair{17, 0}}) {
    SCOPED_TRACE(absent);
    std::atomic<int> started{0};
    const int others = n - 1;
    // A waiting rank asks rank 0 about the absent rank a second before the timeout: a fifth of this timeout, on a busy
    // machine.
    const auto timeout = absent == 0 ? milliseconds(1000) : milliseconds(5000);
    withGroup(n, [&, absent = absent](Communicator& group) {
      std::vector<std::int64_t> word = {7};
      const bool isAbsent = group.rank() == absent;
      if (isAbsent) {
        // The messages of the other ranks arrive after the notice that they gave up.
        for (Rank peer = 0; peer < group.worldSize(); ++peer) {
          if (peer != absent) {
            expectOk(group.recv(viewOf(word), peer, 0));
          }
        }
      } else {
        ++started;
        await(started, others);
      }
      const auto before = Clock::now();
      auto op = group.compileOp(rowsSpec(group.rank(), group.worldSize(), 1, false), timeout);
      if (!isAbsent) {
        expectOk(group.send(viewOf(word), absent, 0));
      }
      ASSERT_FALSE(op.isOk());
      EXPECT_EQ(op.status().code(), StatusCode::kTimeout);
      const std::string text = op.status().message();
      if (isAbsent) {
        EXPECT_NE(text.find("was given up by rank"), std::string::npos) << text;
        EXPECT_LT(Clock::now() - before, timeout) << "the rank was notified at once";
      } else if (absent == 0) {
        EXPECT_NE(text.find("what rank 0 collects from all ranks did not come"), std::string::npos) << text;
      } else {
        EXPECT_NE(text.find(fmt::format("rank {} did not arrive", absent)), std::string::npos)
            << text;                                    // only the absent rank is named
        EXPECT_LE(Clock::now() - before, seconds(15));  // not the group's 20 s
      }
      runReshape(group, 1);
    });
  }
}

TEST(CompileOp, RefusesWrongTensorsBeforeAnythingMoves) {
  withGroup(2, [&](Communicator& group) {
    auto op = group.compileOp(rowsSpec(group.rank(), 2, 2, false));
    ASSERT_TRUE(op.isOk());
    std::vector<std::int64_t> input(8, 5);
    std::vector<std::int64_t> output(8, -1);
    const TensorView in = TensorView::contiguous(input.data(), DType::kInt64, {2, 4});
    const TensorView out = TensorView::contiguous(output.data(), DType::kInt64, {4, 2});
    const TensorView wrongShape = TensorView::contiguous(output.data(), DType::kInt64, {2, 4});
    const TensorView wrongType = TensorView::contiguous(output.data(), DType::kFloat64, {4, 2});
    const TensorView overlapping{reinterpret_cast<std::byte*>(output.data()), DType::kInt64, {4, 2}, {1, 1}};
    const TensorView tooFar{
        reinterpret_cast<std::byte*>(output.data()), DType::kInt64, {4, 2}, {std::int64_t{1} << 60, 1}};
    const TensorView sameAsInput = TensorView::contiguous(input.data(), DType::kInt64, {4, 2});
    const TensorView oneStride{reinterpret_cast<std::byte*>(output.data()), DType::kInt64, {4, 2}, {2}};
    const std::span<const TensorView> none;
    EXPECT_EQ((*op)->run(none, {&out, 1}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ((*op)->run({&in, 1}, {&wrongShape, 1}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ((*op)->run({&in, 1}, {&wrongType, 1}).status().code(), StatusCode::kTypeError);
    EXPECT_EQ((*op)->run({&in, 1}, {&overlapping, 1}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ((*op)->run({&in, 1}, {&tooFar, 1}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ((*op)->run({&in, 1}, {&sameAsInput, 1}).status().code(), StatusCode::kInvalidArgument);
    expectSays((*op)->run({&in, 1}, {&oneStride, 1}).status(), StatusCode::kInvalidArgument,
               "outputs[0] of rank " + std::to_string(group.rank()) + " has shape [4, 2] and 1 strides");
    EXPECT_EQ(output, std::vector<std::int64_t>(8, -1));
    expectOk((*op)->run({&in, 1}, {&out, 1}));
    EXPECT_EQ(output, std::vector<std::int64_t>(8, 5));
  });
}

TEST(CompileOp, TwoRunsOfABoundOpMayBeInFlight) {
  withGroup(2, [&](Communicator& group) {
    auto op = group.compileOp(rowsSpec(group.rank(), 2, 100, false));
    ASSERT_TRUE(op.isOk());
    std::vector<std::int64_t> input(20000, group.rank());
    std::vector<std::int64_t> output(20000, -1);
    const TensorView in = TensorView::contiguous(input.data(), DType::kInt64, {100, 200});
    const TensorView out = TensorView::contiguous(output.data(), DType::kInt64, {200, 100});
    auto bound = (*op)->bind({&in, 1}, {&out, 1});
    ASSERT_TRUE(bound.isOk());
    for (int i = 0; i < 50; ++i) {
      auto first = (*bound)->run();
      auto second = (*bound)->run();
      expectOk(second);
      expectOk(first);
    }
    EXPECT_EQ(output[0], 0);
    EXPECT_EQ(output[19999], 1);
    EXPECT_EQ((*op)->stats().numRuns, 100u);
  });
}

}  // namespace
}  // namespace shardwire::internal
