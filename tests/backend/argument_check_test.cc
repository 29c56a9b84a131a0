// Options::checkAll between ranks that are threads. First equal calls, then calls that differ in shape, root, kind,
// splits, or message, then groups where checking is off or on at some ranks only, and at last runs of compiled ops. A
// mismatch must name both calls on every rank.
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>

#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

Options checked() {
  Options options = testOptions();
  options.checkAll = true;
  return options;
}

TensorView typedViewOf(std::vector<std::int64_t>& values, DType dtype, const Dims& shape) {
  return TensorView::contiguous(values.data(), dtype, shape);
}

Status endOf(const Result<WorkPtr>& work) {
  return work.isOk() ? (*work)->wait() : work.status();
}

using Call = std::function<Result<WorkPtr>(Communicator&, std::vector<std::int64_t>&)>;

// Every rank's `call` fails in the same operation, with both calls in the text.
void expectBothNamed(int n, const Call& call, const std::string& one, const std::string& other) {
  withGroup(
      n,
      [&](Communicator& group) {
        std::vector<std::int64_t> values(64, group.rank());
        const Status status = endOf(call(group, values));
        EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
        EXPECT_NE(status.message().find(one), std::string::npos) << status.message();
        EXPECT_NE(status.message().find(other), std::string::npos) << status.message();
        EXPECT_EQ(values, std::vector<std::int64_t>(64, group.rank())) << "something moved";
      },
      checked());
}

TEST(CheckAll, EqualCallsGoThrough) {
  withGroup(
      3,
      [](Communicator& group) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{100000}}) {
          std::vector<WorkPtr> works;
          std::vector<std::vector<std::int64_t>> sums(5, std::vector<std::int64_t>(count, group.rank()));
          for (auto& sum : sums) {
            works.push_back(*group.allReduce(internal::viewOf(sum), ReduceOp::kSum));
          }
          works.push_back(*group.barrier());
          works.push_back(*group.broadcast(internal::viewOf(sums[0]), 1));
          for (const WorkPtr& work : works) {
            ASSERT_TRUE(work->wait().isOk()) << work->status().message();
          }
          ASSERT_EQ(sums[4], std::vector<std::int64_t>(count, 3));
          // Every pair's own sizes.
          std::vector<std::vector<std::int64_t>> out(3);
          std::vector<std::vector<std::int64_t>> in(3);
          std::vector<TensorView> outputs;
          std::vector<TensorView> inputs;
          for (std::size_t r = 0; r < 3; ++r) {
            const auto me = static_cast<std::size_t>(group.rank());
            in[r].assign(count * (2 * me + r), group.rank());
            out[r].resize(count * (2 * r + me));
            outputs.push_back(internal::viewOf(out[r]));
            inputs.push_back(internal::viewOf(in[r]));
          }
          expectOk(group.allToAll(outputs, inputs));
          std::vector<std::int64_t> message(count, group.rank());
          std::vector<std::int64_t> received(count);
          auto send = group.send(internal::viewOf(message), (group.rank() + 1) % 3, 5);
          expectOk(group.recv(internal::viewOf(received), kAnySource, 5));
          expectOk(send);
          ASSERT_EQ(received, std::vector<std::int64_t>(count, (group.rank() + 2) % 3));
        }
      },
      checked());
}

TEST(CheckAll, ShapesOfAsManyElementsDiffer) {
  const Call call = [](Communicator& group, std::vector<std::int64_t>& values) {
    return group.allReduce(typedViewOf(values, DType::kInt64, group.rank() == 1 ? Dims{8, 2} : Dims{2, 8}),
                           ReduceOp::kSum);
  };
  expectBothNamed(3, call, "rank 0 called all_reduce(int64[2, 8], sum)", "rank 1 called all_reduce(int64[8, 2], sum)");
}

TEST(CheckAll, RootsDiffer) {
  const Call call = [](Communicator& group, std::vector<std::int64_t>& values) {
    return group.broadcast(typedViewOf(values, DType::kInt64, {1}), group.rank() == 2 ? 1 : 0);
  };
  expectBothNamed(3, call, "rank 0 called broadcast(int64[1], root 0)", "rank 2 called broadcast(int64[1], root 1)");
}

TEST(CheckAll, CallsDiffer) {
  const Call call = [](Communicator& group, std::vector<std::int64_t>& values) {
    return group.rank() == 0 ? group.barrier()
                             : group.allReduce(typedViewOf(values, DType::kInt64, {4}), ReduceOp::kMax);
  };
  expectBothNamed(3, call, "operation #1: rank 0 called barrier",
                  "rank 1 called all_reduce(int64[4], max) (1 more differ from rank 0)");
}

// Arguments go by rank 0 and a tree then.
TEST(CheckAll, CallsOfManyRanksAreCompared) {
  withGroup(
      17,
      [](Communicator& group) {
        for (int round = 0; round < 3; ++round) {
          std::vector<std::int64_t> values(8, group.rank());
          expectOk(group.allReduce(internal::viewOf(values), ReduceOp::kSum));
          ASSERT_EQ(values, std::vector<std::int64_t>(8, 136));
        }
      },
      checked());
  const Call call = [](Communicator& group, std::vector<std::int64_t>& values) {
    return group.allReduce(typedViewOf(values, DType::kInt64, group.rank() == 12 ? Dims{8, 2} : Dims{2, 8}),
                           ReduceOp::kSum);
  };
  expectBothNamed(17, call, "rank 0 called all_reduce(int64[2, 8], sum)",
                  "rank 12 called all_reduce(int64[8, 2], sum)");
}

TEST(CheckAll, SplitsDiffer) {
  const Call call = [](Communicator& group, std::vector<std::int64_t>& values) {
    std::vector<TensorView> inputs;
    std::vector<TensorView> outputs;
    for (std::int64_t r = 0; r < 2; ++r) {
      inputs.push_back(TensorView::contiguous(&values[static_cast<std::size_t>(8 * r)], DType::kInt64, {4, 2}));
      const Dims shape = group.rank() == 0 && r == 1 ? Dims{2, 4} : Dims{4, 2};
      outputs.push_back(TensorView::contiguous(&values[static_cast<std::size_t>(32 + 8 * r)], DType::kInt64, shape));
    }
    return group.allToAll(outputs, inputs);
  };
  expectBothNamed(2, call, "all_to_all(int64)", "rank 1 sends int64[4, 2] to rank 0, which expects int64[2, 4]");
}

TEST(CheckAll, MessagesOfAsManyBytesDiffer) {
  for (const std::int64_t count : {4, 4000, 400000}) {  // eager, offered and read, offered and longer than a segment
    withGroup(
        2,
        [&](Communicator& group) {
          std::vector<std::int64_t> values(static_cast<std::size_t>(count), group.rank());
          const Status status =
              endOf(group.rank() == 0 ? group.send(typedViewOf(values, DType::kFloat32, {count, 2}), 1, 3)
                                      : group.recv(typedViewOf(values, DType::kInt32, {2 * count}), 0, 3));
          const std::string text = "rank 0 sent float32[" + std::to_string(count) +
                                   ", 2] with tag 3, but rank 1 receives int32[" + std::to_string(2 * count) + "]";
          if (group.rank() == 1 || !status.isOk()) {  // an eager send is over before any rank checks the arguments
            EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
            EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
          }
          EXPECT_EQ(values[0], group.rank());
          EXPECT_EQ(endOf(group.barrier()).code(), StatusCode::kMismatch);
        },
        checked());
  }
}

// Without checkAll the bytes pass: docs/errors.md.
TEST(CheckAll, IsOffByDefault) {
  withGroup(2, [](Communicator& group) {
    std::vector<std::int64_t> values(8, group.rank() + 1);
    expectOk(group.allReduce(typedViewOf(values, DType::kInt64, group.rank() == 1 ? Dims{4, 2} : Dims{2, 4}),
                             ReduceOp::kSum));
    expectOk(group.rank() == 0 ? group.send(typedViewOf(values, DType::kFloat32, {16}), 1, 0)
                               : group.recv(typedViewOf(values, DType::kInt32, {4, 4}), 0, 0));
  });
}

// A message describes its content only when the sender checks, and only a checking receiver compares.
TEST(CheckAll, OfOneEndOfAMessageOnlyComparesNothing) {
  for (const Rank who : {0, 1}) {
    for (const std::int64_t count : {4, 100000}) {
      MemoryStore store;
      testing::runRanksAsThreads(2, [&](Rank rank) {
        auto group = Communicator::create(store, rank, 2, rank == who ? checked() : testOptions(), "test");
        ASSERT_TRUE(group.isOk()) << group.status().message();
        std::vector<std::int64_t> values(static_cast<std::size_t>(count), 7 + rank);
        std::vector<std::int64_t> answer(static_cast<std::size_t>(count));
        expectOk(rank == 0 ? (*group)->send(internal::viewOf(values), 1, 0)
                           : (*group)->recv(internal::viewOf(answer), 0, 0));
        expectOk(rank == 1 ? (*group)->send(internal::viewOf(values), 0, 0)
                           : (*group)->recv(internal::viewOf(answer), 1, 0));
        EXPECT_EQ(answer, std::vector<std::int64_t>(static_cast<std::size_t>(count), 8 - rank));
      });
    }
  }
}

TEST(CheckAll, OfSomeRanksOnlyIsNamed) {
  for (const std::int64_t count : {1, 100000}) {
    for (const Rank root : {0, 1, 2}) {
      for (const bool broadcasts : {true, false}) {
        MemoryStore store;
        testing::runRanksAsThreads(3, [&](Rank rank) {
          auto group = Communicator::create(store, rank, 3, rank == 0 ? checked() : testOptions(), "test");
          ASSERT_TRUE(group.isOk()) << group.status().message();
          std::vector<std::int64_t> values(static_cast<std::size_t>(count), rank);
          Status status = endOf(broadcasts ? (*group)->broadcast(internal::viewOf(values), root)
                                           : (*group)->allReduce(internal::viewOf(values), ReduceOp::kSum));
          if (status.isOk()) {
            status = endOf((*group)->barrier());  // the root may have sent all bytes before the root is notified
          }
          EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
          EXPECT_NE(status.message().find("SHARDWIRE_CHECK=full"), std::string::npos) << status.message();
        });
      }
    }
  }
}

TEST(CheckAll, RunsOfCompiledOpsAreCompared) {
  const auto spec = [](Rank rank, const char* name) {
    LocalSpec local;
    local.name = name;
    local.tensors.push_back({.name = "", .shape = Dims{4}, .dtype = DType::kInt64});
    local.inputs.push_back({.localShape = {2}, .slices = {{.slice = {{2 * rank}, {2}}, .localOffset = {0}}}});
    // No bytes travel: no frame would show the difference.
    local.outputs.push_back({.localShape = {2}, .slices = {{.slice = {{2 * rank}, {2}}, .localOffset = {0}}}});
    return local;
  };
  withGroup(
      2,
      [&](Communicator& group) {
        auto a = group.compileOp(spec(group.rank(), "a"));
        auto b = group.compileOp(spec(group.rank(), "b\nwith a line end"));
        ASSERT_TRUE(a.isOk() && b.isOk());
        std::vector<std::int64_t> input(2, 1);
        std::vector<std::int64_t> output(2);
        const TensorView in = internal::viewOf(input);
        const TensorView out = internal::viewOf(output);
        expectOk((*b)->run({&in, 1}, {&out, 1}));
        auto& swapped = group.rank() == 0 ? *a : *b;
        const Status status = endOf(swapped->run({&in, 1}, {&out, 1}));
        EXPECT_EQ(status.code(), StatusCode::kMismatch) << status.message();
        EXPECT_NE(status.message().find("rank 0 called a run of compile_op \"a\""), std::string::npos)
            << status.message();
        EXPECT_NE(status.message().find("rank 1 called a run of compile_op \"b with a line end\""), std::string::npos)
            << status.message();
      },
      checked());
}

}  // namespace
}  // namespace shardwire::internal
