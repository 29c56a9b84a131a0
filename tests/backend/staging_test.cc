// Operations over host copies that fill up while the operations run (shardwire/staging.h): no byte is read or
// overwritten before it is ready, every written byte is announced and reported, and the results are the results of
// ordinary tensors.
#include "shardwire/staging.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {
namespace {

using shardwire::testing::runRanksAsThreads;

// One tensor, filled piece by piece by another thread; until then each value is poison.
class ComingTensor final : public Staging {
 public:
  static constexpr std::int64_t kPoison = -1;
  explicit ComingTensor(std::vector<std::int64_t> values)
      : values_(std::move(values)), copy_(values_.size(), kPoison) {}
  ~ComingTensor() override {
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  void start(unsigned seed) {
    thread_ = std::thread([this, seed] {
      std::mt19937 random(seed);
      while (ready_ < values_.size()) {
        std::this_thread::yield();
        const std::size_t next = std::min(values_.size(), ready_ + 1 + random() % (values_.size() / 8 + 1));
        std::copy(values_.begin() + static_cast<std::ptrdiff_t>(ready_),
                  values_.begin() + static_cast<std::ptrdiff_t>(next),
                  copy_.begin() + static_cast<std::ptrdiff_t>(ready_));
        ready_.store(next, std::memory_order_release);
        wake_();
      }
    });
  }
  TensorView view() {
    return TensorView::contiguous(copy_.data(), DType::kInt64, {static_cast<std::int64_t>(copy_.size())});
  }
  const std::vector<std::int64_t>& copy() const { return copy_; }
  std::size_t announced() const { return announced_; }
  std::size_t written() const { return written_; }

  void attach(std::function<void()> wake) override { wake_ = std::move(wake); }
  void willWrite(const std::byte* first, std::size_t, std::size_t bytes) override {
    announced_ += isMine(first) ? bytes : 0;
  }
  bool isReady(const std::byte* first, std::size_t extent) const override {
    return !isMine(first) || first + extent <= base() + ready_.load(std::memory_order_acquire) * sizeof(std::int64_t);
  }
  bool allReady() const override { return ready_.load(std::memory_order_acquire) == values_.size(); }
  void wrote(const std::byte* first, std::size_t extent, std::size_t bytes) override {
    EXPECT_TRUE(isReady(first, extent)) << "overwritten before it came";
    written_ += isMine(first) ? bytes : 0;
  }

 private:
  const std::byte* base() const { return reinterpret_cast<const std::byte*>(copy_.data()); }
  bool isMine(const std::byte* first) const {
    return first >= base() && first < base() + copy_.size() * sizeof(std::int64_t);
  }

  const std::vector<std::int64_t> values_;
  std::vector<std::int64_t> copy_;
  std::atomic<std::size_t> ready_ = 0;  // release pairs with acquire: the values are there
  std::size_t announced_ = 0;
  std::atomic<std::size_t> written_ = 0;
  std::function<void()> wake_;
  std::thread thread_;
};

std::vector<std::int64_t> valuesOf(Rank rank, std::size_t size) {
  std::vector<std::int64_t> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = static_cast<std::int64_t>(i) * 7 + rank + 1;
  }
  return values;
}

// The tensor of every rank but the last is still being filled.
void allReduce(int n, std::size_t size) {
  MemoryStore store;
  runRanksAsThreads(n, [&](Rank rank) {
    Options options;
    options.timeout = std::chrono::seconds(20);
    auto group = Communicator::create(store, rank, n, options, "staging");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    for (unsigned round = 0; round < 4; ++round) {
      ComingTensor tensor(valuesOf(rank, size));
      std::vector<std::int64_t> plain = valuesOf(rank, size);
      const bool isComing = rank != n - 1;
      CallOptions call;
      call.staging = isComing ? &tensor : nullptr;
      const TensorView view =
          isComing ? tensor.view()
                   : TensorView::contiguous(plain.data(), DType::kInt64, {static_cast<std::int64_t>(size)});
      auto work = (*group)->allReduce(view, ReduceOp::kSum, call);
      ASSERT_TRUE(work.isOk()) << work.status().message();
      if (isComing) {
        EXPECT_FALSE((*work)->isDone());
        tensor.start(round * 100 + static_cast<unsigned>(rank));
      }
      const Status status = (*work)->wait(Clock::now() + std::chrono::seconds(20));
      ASSERT_TRUE(status.isOk()) << status.message();
      const std::vector<std::int64_t>& result = isComing ? tensor.copy() : plain;
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(result[i], static_cast<std::int64_t>(i) * 7 * n + n * (n + 1) / 2)
            << "element " << i << " of rank " << rank;
      }
      if (isComing) {
        EXPECT_EQ(tensor.announced(), tensor.written());
        EXPECT_GE(tensor.written(), size * sizeof(std::int64_t));
      }
    }
    auto last = (*group)->barrier();
    ASSERT_TRUE(last.isOk());
    EXPECT_TRUE((*last)->wait().isOk());
  });
}

TEST(Staging, ShortAllReduceWaitsForAllOfTheTensor) {
  allReduce(3, 100);
}

TEST(Staging, LongAllReduceGoesOnAsTheTensorComes) {
  allReduce(3, 500000);
}

TEST(Staging, MessagesAreSentOnceTheyAreHere) {
  MemoryStore store;
  runRanksAsThreads(2, [&](Rank rank) {
    auto group = Communicator::create(store, rank, 2, Options{}, "staging");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    for (const std::size_t size : {std::size_t{10}, std::size_t{100000}}) {
      std::vector<std::int64_t> received(size);
      ComingTensor tensor(valuesOf(0, size));
      CallOptions call;
      call.staging = rank == 0 ? &tensor : nullptr;
      auto work =
          rank == 0
              ? (*group)->send(tensor.view(), 1, 5, call)
              : (*group)->recv(
                    TensorView::contiguous(received.data(), DType::kInt64, {static_cast<std::int64_t>(size)}), 0, 5);
      ASSERT_TRUE(work.isOk()) << work.status().message();
      if (rank == 0) {
        tensor.start(1);
      }
      ASSERT_TRUE((*work)->wait(Clock::now() + std::chrono::seconds(20)).isOk());
      if (rank == 1) {
        EXPECT_EQ(received, valuesOf(0, size));
      }
    }
    auto last = (*group)->barrier();
    ASSERT_TRUE(last.isOk());
    EXPECT_TRUE((*last)->wait().isOk());
  });
}

}  // namespace
}  // namespace shardwire::internal
