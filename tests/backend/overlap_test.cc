// Operations of one rank over the same memory, and lists with tensors that share memory, between ranks that are
// threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/backend/thread_group.h"
#include "tests/support/random.h"
#include "tests/support/rounds.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::Random;

constexpr std::int64_t kBytes = sizeof(std::int64_t);

// `count` elements of `buffer`, `step` apart.
TensorView part(std::vector<std::int64_t>& buffer, std::int64_t first, std::int64_t count, std::int64_t step = 1) {
  return {reinterpret_cast<std::byte*>(buffer.data()) + first * kBytes, DType::kInt64, {count}, {step}};
}

void waitForAll(const std::vector<WorkPtr>& works) {
  for (const WorkPtr& work : works) {
    const Status status = work->wait();
    ASSERT_TRUE(status.isOk()) << status.message();
  }
}

// ---- operations over the same tensor

class OverOneTensor : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(OverOneTensor, OperationsRunInTheOrderOfTheirCalls) {
  const std::int64_t count = GetParam();
  constexpr int kRanks = 4;
  constexpr int kOps = 6;
  withGroup(kRanks, [&](Communicator& group) {
    for (const std::int64_t step : {1, 2}) {
      for (int round = 0; round < testing::rounds(5); ++round) {
        std::vector<std::int64_t> buffer(static_cast<std::size_t>(count * step), group.rank() + 1);
        std::vector<WorkPtr> works;
        std::int64_t expected = 0;
        for (int op = 0; op < kOps; ++op) {
          auto work = group.allReduce(part(buffer, 0, count, step), ReduceOp::kSum);
          ASSERT_TRUE(work.isOk()) << work.status().message();
          works.push_back(*work);
          expected = op == 0 ? 1 + 2 + 3 + 4 : expected * kRanks;
        }
        waitForAll(works);
        for (std::int64_t i = 0; i < count; ++i) {
          ASSERT_EQ(buffer[static_cast<std::size_t>(i * step)], expected)
              << "element " << i << ", step " << step << ", round " << round;
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Elements, OverOneTensor, ::testing::Values(1, 700, 20000, 300000));

// One rank's tensors overlap, the other ranks' tensors do not: the first rank waits, and no other rank blocks
// the first.
TEST(OverOneTensor, OfOneRankOnlyEndsEverywhere) {
  withGroup(3, [&](Communicator& group) {
    constexpr std::int64_t kCount = 100000;
    constexpr int kOps = 8;
    std::vector<std::vector<std::int64_t>> tensors(kOps, std::vector<std::int64_t>(kCount, 1));
    std::vector<WorkPtr> works;
    for (int op = 0; op < kOps; ++op) {
      auto& mine = tensors[group.rank() == 1 ? 0 : static_cast<std::size_t>(op)];
      works.push_back(*group.allReduce(viewOf(mine), ReduceOp::kSum));
    }
    waitForAll(works);
    // Rank 1 gives the result of the operation before: v' = v + 2, from 1 on.
    const std::int64_t last = 1 + 2 * kOps;
    EXPECT_EQ(tensors[group.rank() == 1 ? 0 : kOps - 1], std::vector<std::int64_t>(kCount, last));
  });
}

// A rank that waits behind another operation says so, and names the ranks that the other operation waits for.
TEST(OverOneTensor, ATimeoutNamesTheOperationBeforeIt) {
  std::atomic<int> ended{0};
  withGroup(2, [&](Communicator& group) {
    if (group.rank() == 1) {
      await(ended, 1);
      return;
    }
    std::vector<std::int64_t> values(1000, 1);
    auto first = group.allReduce(viewOf(values), ReduceOp::kSum);
    auto second = group.allReduce(viewOf(values), ReduceOp::kMax, {.timeout = std::chrono::milliseconds(50)});
    ASSERT_TRUE(first.isOk() && second.isOk());
    const Status status = (*second)->wait();
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_NE(status.message().find("all_reduce(int64[1000], sum) must be over first: rank 1 did not arrive"),
              std::string::npos)
        << status.message();
    ++ended;
  });
}

// ---- random calls against a sequential model

struct Model {
  std::vector<std::vector<std::int64_t>> buffers;  // by rank
  std::int64_t& at(Rank rank, std::int64_t index) {
    return buffers[static_cast<std::size_t>(rank)][static_cast<std::size_t>(index)];
  }
};

// A view of each rank's buffer: the same count, anywhere.
struct Place {
  std::int64_t count = 0;
  std::int64_t step = 1;
  std::vector<std::int64_t> first;  // by rank
  std::int64_t index(Rank rank, std::int64_t i) const { return first[static_cast<std::size_t>(rank)] + i * step; }
  TensorView view(std::vector<std::int64_t>& buffer, Rank rank) const {
    return part(buffer, first[static_cast<std::size_t>(rank)], count, step);
  }
};

Place randomPlace(Random& random, int n, std::int64_t size, std::int64_t count) {
  Place place{count, random.chance(60) ? 1 : 2, {}};
  const bool alike = random.chance(50);
  for (Rank rank = 0; rank < n; ++rank) {
    const std::int64_t most = size - count * place.step;
    place.first.push_back(alike && rank > 0 ? place.first[0] : random.between(0, most));
  }
  return place;
}

// n pieces of `count` elements, one after the other, and one more place of the same size: the place of piece r, or a
// place apart from all pieces.
struct Pieces {
  std::int64_t count = 0;
  std::vector<std::int64_t> first;  // of the pieces, by rank
  std::vector<std::int64_t> alone;  // by rank
  std::vector<TensorView> views(std::vector<std::int64_t>& buffer, Rank rank) const {
    std::vector<TensorView> all;
    for (std::size_t r = 0; r < first.size(); ++r) {
      all.push_back(part(buffer, first[static_cast<std::size_t>(rank)] + static_cast<std::int64_t>(r) * count, count));
    }
    return all;
  }
};

Pieces randomPieces(Random& random, int n, std::int64_t size, std::int64_t count) {
  Pieces pieces{count, {}, {}};
  for (Rank rank = 0; rank < n; ++rank) {
    const std::int64_t first = random.between(0, size - (n + 1) * count);
    const bool inPlace = random.chance(40);
    pieces.first.push_back(first);
    pieces.alone.push_back(inPlace ? first + rank * count : random.between(first + n * count, size - count));
  }
  return pieces;
}

// Issues one call on this rank and applies to the model the call's effect on all ranks.
Result<WorkPtr> randomCall(Random& random, Communicator& group, std::vector<std::int64_t>& buffer, Model& model,
                           std::int64_t mostElems) {
  const int n = group.worldSize();
  const Rank me = group.rank();
  const auto size = static_cast<std::int64_t>(buffer.size());
  const std::int64_t count = random.chance(50) ? random.between(1, 9) : random.between(1, mostElems);
  const auto root = static_cast<Rank>(random.between(0, n - 1));
  const auto kind = random.between(0, 4);
  if (kind <= 2) {  // all_reduce, broadcast, reduce
    const Place place = randomPlace(random, n, size, count);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t result = kind == 1 ? model.at(root, place.index(root, i)) : 0;
      for (Rank rank = 0; kind != 1 && rank < n; ++rank) {
        result ^= model.at(rank, place.index(rank, i));
      }
      for (Rank rank = 0; rank < n; ++rank) {
        if (kind != 2 || rank == root) {
          model.at(rank, place.index(rank, i)) = result;
        }
      }
    }
    const TensorView view = place.view(buffer, me);
    return kind == 0   ? group.allReduce(view, ReduceOp::kBxor)
           : kind == 1 ? group.broadcast(view, root)
                       : group.reduce(view, root, ReduceOp::kBxor);
  }
  const Pieces pieces = randomPieces(random, n, size, count);
  const auto before = model;
  const auto& own = pieces.alone;
  for (Rank rank = 0; rank < n; ++rank) {
    for (Rank peer = 0; peer < n; ++peer) {
      const auto r = static_cast<std::size_t>(rank);
      for (std::int64_t i = 0; i < count; ++i) {
        if (kind == 3) {  // all_gather
          model.at(rank, pieces.first[r] + peer * count + i) =
              before.buffers[static_cast<std::size_t>(peer)]
                            [static_cast<std::size_t>(own[static_cast<std::size_t>(peer)] + i)];
        } else {  // reduce_scatter
          std::int64_t& out = model.at(rank, own[r] + i);
          const std::int64_t theirs =
              before.buffers[static_cast<std::size_t>(peer)]
                            [static_cast<std::size_t>(pieces.first[static_cast<std::size_t>(peer)] + rank * count + i)];
          out = peer == 0 ? theirs : out ^ theirs;
        }
      }
    }
  }
  const auto views = pieces.views(buffer, me);
  const TensorView alone = part(buffer, own[static_cast<std::size_t>(me)], count);
  return kind == 3 ? group.allGather(alone, views) : group.reduceScatter(alone, views, ReduceOp::kBxor);
}

void compareWithModel(Communicator& group, std::uint64_t seed, std::int64_t size, std::int64_t mostElems) {
  Random random(seed);  // drawn from alike on all ranks
  Model model;
  for (Rank rank = 0; rank < group.worldSize(); ++rank) {
    auto& values = model.buffers.emplace_back(static_cast<std::size_t>(size));
    for (auto& value : values) {
      value = static_cast<std::int64_t>(random.bits());
    }
  }
  const auto me = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> buffer = model.buffers[me];
  std::vector<WorkPtr> works;
  const auto calls = random.between(2, 12);
  for (std::int64_t call = 0; call < calls; ++call) {
    auto work = randomCall(random, group, buffer, model, mostElems);
    ASSERT_TRUE(work.isOk()) << "seed " << seed << ": " << work.status().message();
    works.push_back(*work);
  }
  random.shuffle(works);
  waitForAll(works);
  for (std::size_t i = 0; i < buffer.size(); ++i) {
    ASSERT_EQ(buffer[i], model.buffers[me][i]) << "seed " << seed << ", rank " << group.rank() << ", element " << i;
  }
}

TEST(RandomOverlaps, AreAsIfEachCallWereOverBeforeTheNext) {
  const char* first = std::getenv("SHARDWIRE_ORACLE_SEED");
  const std::uint64_t seed = first != nullptr ? std::strtoull(first, nullptr, 10) : 1;
  for (const int n : {2, 3, 4}) {
    withGroup(n, [&](Communicator& group) {
      for (int i = 0; i < testing::rounds(100) && !::testing::Test::HasFailure(); ++i) {
        compareWithModel(group, seed + static_cast<std::uint64_t>(i), 100, 10);
      }
      for (int i = 0; i < testing::rounds(8) && !::testing::Test::HasFailure(); ++i) {
        compareWithModel(group, seed + static_cast<std::uint64_t>(i), 200000, 30000);
      }
    });
  }
}

// ---- compiled ops

// Every rank's part of [n * rows] moves to the next rank, in place.
LocalSpec turnSpec(Rank rank, int n, std::int64_t rows) {
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{n * rows}, .dtype = DType::kInt64});
  const Rank next = (rank + 1) % n;
  spec.inputs.push_back({.localShape = {rows}, .slices = {{.slice = {{rank * rows}, {rows}}, .localOffset = {0}}}});
  spec.outputs.push_back({.localShape = {rows}, .slices = {{.slice = {{next * rows}, {rows}}, .localOffset = {0}}}});
  return spec;
}

TEST(CompiledOps, RunInTheOrderOfTheirCallsWhereTheyShareTensors) {
  constexpr int kRanks = 3;
  withGroup(kRanks, [&](Communicator& group) {
    for (const std::int64_t rows : {5, 200000}) {
      auto op = group.compileOp(turnSpec(group.rank(), kRanks, rows));
      ASSERT_TRUE(op.isOk()) << op.status().message();
      for (int round = 0; round < 5; ++round) {
        // a -> b -> c -> a, and a sum over all ranks at the end: each reads what the one before wrote.
        std::vector<std::vector<std::int64_t>> buffers(3,
                                                       std::vector<std::int64_t>(static_cast<std::size_t>(rows), -1));
        buffers[0].assign(static_cast<std::size_t>(rows), group.rank());
        std::vector<WorkPtr> works;
        for (std::size_t i = 0; i < 6; ++i) {
          const TensorView in = viewOf(buffers[i % 3]);
          const TensorView out = viewOf(buffers[(i + 1) % 3]);
          if (i % 2 == 0) {
            works.push_back(*(*op)->run({&in, 1}, {&out, 1}));
          } else {
            auto bound = (*op)->bind({&in, 1}, {&out, 1});
            ASSERT_TRUE(bound.isOk());
            works.push_back(*(*bound)->run());
            waitForAll({works.back()});  // the bound op must outlive the runs
          }
        }
        works.push_back(*group.allReduce(viewOf(buffers[0]), ReduceOp::kBxor));
        waitForAll(works);
        const std::int64_t held = (group.rank() + 5) % kRanks;  // after five moves; the sixth moved the row round
        ASSERT_EQ(buffers[2], std::vector<std::int64_t>(static_cast<std::size_t>(rows), held));
        ASSERT_EQ(buffers[0], std::vector<std::int64_t>(static_cast<std::size_t>(rows), 0 ^ 1 ^ 2));
      }
    }
  });
}

TEST(CompiledOps, RefuseOutputsThatOverlapPartly) {
  withGroup(1, [](Communicator& group) {
    LocalSpec spec;
    spec.tensors.push_back({.name = "", .shape = Dims{4}, .dtype = DType::kInt64});
    const LocalTensor half{.localShape = {2}, .slices = {{.slice = {{0}, {2}}, .localOffset = {0}}}};
    spec.inputs.push_back({.localShape = {4}, .slices = {{.slice = {{0}, {4}}, .localOffset = {0}}}});
    spec.outputs = {half, half, half};
    auto op = group.compileOp(spec);
    ASSERT_TRUE(op.isOk()) << op.status().message();
    std::vector<std::int64_t> from(4, 1);
    std::vector<std::int64_t> to(8);
    const TensorView in = viewOf(from);
    const std::vector<TensorView> apart = {part(to, 0, 2, 3), part(to, 1, 2, 3), part(to, 6, 2)};
    expectOk((*op)->run({&in, 1}, apart));
    // The first and the last share memory: between the two addresses lies the second.
    const Status refused =
        (*op)->run({&in, 1}, std::vector{part(to, 0, 2, 3), part(to, 1, 2), part(to, 3, 2)}).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("outputs[0] and outputs[2] of rank 0 share memory"), std::string::npos)
        << refused.message();
  });
}

// ---- lists

void expectRefused(const Result<WorkPtr>& work, const std::string& text) {
  ASSERT_FALSE(work.isOk()) << text;
  EXPECT_EQ(work.status().code(), StatusCode::kInvalidArgument) << work.status().message();
  EXPECT_NE(work.status().message().find(text), std::string::npos) << work.status().message();
}

TEST(Lists, ThatShareMemoryAreRefusedByName) {
  withGroup(3, [&](Communicator& group) {
    std::vector<std::int64_t> buffer(30, group.rank());
    std::vector<std::int64_t> other(30);
    const auto three = [&](std::int64_t first, std::int64_t second, std::int64_t third) {
      return std::vector{part(buffer, first, 4), part(buffer, second, 4), part(buffer, third, 4)};
    };
    const TensorView apart = part(other, 0, 4);
    const auto all = three(0, 4, 8);
    const auto own = static_cast<std::size_t>(group.rank());
    const std::string rank = " of rank " + std::to_string(group.rank());
    expectRefused(group.allGather(apart, three(0, 8, 0)),
                  "all_gather: outputs[0] and outputs[2]" + rank + " share memory");
    expectRefused(group.allGather(apart, three(0, 3, 8)),
                  "all_gather: outputs[0] and outputs[1]" + rank + " share memory");
    expectRefused(group.allGather(all[(own + 1) % 3], all),
                  "all_gather: the input and outputs[" + std::to_string((own + 1) % 3) + "]" + rank + " share memory");
    expectRefused(group.reduceScatter(part(buffer, 2, 4), all, ReduceOp::kSum),
                  "reduce_scatter: inputs[0] and the output" + rank);
    expectRefused(group.allToAll(all, all), "all_to_all: inputs[");
    expectRefused(group.allToAll(three(0, 4, 6), std::vector{apart, apart, apart}),
                  "all_to_all: outputs[1] and outputs[2]" + rank);
    if (group.rank() == 0) {
      expectRefused(group.gather(apart, three(0, 0, 8), 0), "gather: outputs[0] and outputs[1]" + rank);
      expectRefused(group.scatter(part(buffer, 6, 4), all, 0), "scatter: inputs[1] and the output" + rank);
    }
    // Legal: one input for all, interleaved outputs, this rank's own in place; and the group continues after refusals.
    const std::vector<TensorView> columns = {part(buffer, 0, 4, 3), part(buffer, 1, 4, 3), part(buffer, 2, 4, 3)};
    other.assign(30, group.rank());
    expectOk(group.allToAll(columns, std::vector{apart, apart, apart}));
    for (std::size_t i = 0; i < 12; ++i) {
      ASSERT_EQ(buffer[i], static_cast<std::int64_t>(i % 3));
    }
    buffer.assign(30, group.rank());
    expectOk(group.allGather(all[own], all));
    for (std::size_t i = 0; i < 12; ++i) {
      ASSERT_EQ(buffer[i], static_cast<std::int64_t>(i / 4));
    }
  });
}

}  // namespace
}  // namespace shardwire::internal
