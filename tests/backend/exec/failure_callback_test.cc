#include "backend/exec/failure_callback.h"

#include <gtest/gtest.h>

namespace shardwire::internal {
namespace {

TEST(FailureCallback, RunsOncePerFailureAndNotForAnAbort) {
  FailureCallback callback;
  EXPECT_FALSE(callback.add(StatusCode::kTimeout));  // no callback is registered yet
  callback.run();
  int calls = 0;
  callback.set([&] { ++calls; });
  callback.run();
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(callback.add(StatusCode::kAborted));
  EXPECT_TRUE(callback.add(StatusCode::kPeerFailed));
  callback.run();
  callback.run();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(callback.add(StatusCode::kTimeout));
  callback.run();
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace shardwire::internal
