// Groups whose ranks are threads of one process, and what their tests share.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "shardwire/communicator.h"
#include "tests/support/fork_ranks.h"
#include "tests/support/memory_store.h"

namespace shardwire::internal {

// As the environment says: SHARDWIRE_TRANSPORTS runs all of this over another transport (tests/CMakeLists.txt).
inline Options testOptions() {
  Options options = *Options::fromEnvironment();
  options.timeout = std::chrono::seconds(20);
  return options;
}

// Runs `body` on every rank of a fresh group of threads.
inline void withGroup(int n, const std::function<void(Communicator&)>& body, const Options& options = testOptions()) {
  testing::MemoryStore store;
  testing::runRanksAsThreads(n, [&](Rank rank) {
    auto group = Communicator::create(store, rank, n, options, "test");
    ASSERT_TRUE(group.isOk()) << group.status().message();
    body(**group);
    // Nobody leaves while others still need it.
    auto last = (*group)->barrier();
    if (last.isOk()) {
      (void)(*last)->wait();
    }
  });
}

inline TensorView viewOf(std::vector<std::int64_t>& values) {
  return TensorView::contiguous(values.data(), DType::kInt64, {static_cast<std::int64_t>(values.size())});
}

inline void expectOk(const Result<WorkPtr>& work) {
  ASSERT_TRUE(work.isOk()) << work.status().message();
  const Status status = (*work)->wait();
  ASSERT_TRUE(status.isOk()) << status.message();
}

// Until as many ranks have come here.
inline void await(const std::atomic<int>& arrived, int many) {
  while (arrived < many) {
    std::this_thread::yield();
  }
}

}  // namespace shardwire::internal
