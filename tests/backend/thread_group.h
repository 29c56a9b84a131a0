// Groups of ranks that are threads of one process, and shared parts of the tests of such groups.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/stores.h"
#include "tests/support/fork_ranks.h"

namespace shardwire::internal {

// Options from the environment: SHARDWIRE_TRANSPORTS runs all of these tests over another transport
// (tests/CMakeLists.txt).
inline Options testOptions() {
  Options options = *Options::fromEnvironment();
  options.timeout = std::chrono::seconds(20);
  return options;
}

// Runs `body` on every rank of a fresh group of threads.
inline void withGroup(int n, const std::function<void(Communicator&)>& body, const Options& options = testOptions()) {
  MemoryStore store;
  testing::runRanksAsThreads(n, [&](Rank rank) {
    auto group = Communicator::create(store, rank, n, options, "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    body(**group);
    // No rank leaves while others still need the rank.
    auto last = (*group)->barrier();
    if (last.isOk()) {
      (void)(*last)->wait();
    }
  });
}

inline TensorView viewOf(std::vector<std::int64_t>& values) {
  return TensorView::contiguous(values.data(), DType::kInt64, {static_cast<std::int64_t>(values.size())});
}

// Values depending on rank, place and salt.
inline std::vector<std::int64_t> patternOf(Rank rank, std::size_t size, std::int64_t salt = 0) {
  std::vector<std::int64_t> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = salt + static_cast<std::int64_t>(i) * 31 + rank * 1000003;
  }
  return values;
}

inline void expectOk(const Result<WorkPtr>& work) {
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status status = (*work)->wait();
  ASSERT_TRUE(status.isOk()) << status.message();
}

// Waits until `many` ranks have arrived.
inline void await(const std::atomic<int>& arrived, int many) {
  while (arrived < many) {
    std::this_thread::yield();
  }
}

// The errors of the ranks of one group: all must be the same.
class Sayings {
 public:
  void add(const Status& status) {
    const std::lock_guard lock(mutex_);
    all_.push_back(status);
  }
  Status only(std::size_t count) const {
    EXPECT_EQ(all_.size(), count);
    for (const Status& each : all_) {
      EXPECT_EQ(each, all_[0]);
    }
    return all_.empty() ? Status::ok() : all_[0];
  }

 private:
  std::mutex mutex_;
  std::vector<Status> all_;
};

inline void expectSays(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message() << "\nwanted: " << text;
}

}  // namespace shardwire::internal
