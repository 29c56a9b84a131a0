// The operations in flight for which a new operation over the same memory waits.
#include "backend/communicator/in_flight.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backend/exec/exchange.h"

namespace shardwire::internal {
namespace {

class InFlightTest : public ::testing::Test {
 protected:
  TensorView view(std::size_t first, std::int64_t count, std::int64_t stride = 1) {
    TensorView view = TensorView::contiguous(&floats_.at(first), DType::kFloat32, {count});
    view.strides[0] = stride;
    return view;
  }
  // The numbers of the earlier operations for which this one waits; adds the operation.
  std::vector<int> add(const TensorView& written, const TensorView& read) {
    auto use = inFlight_.newUse();
    use->writes(written);
    use->reads(read);
    use->sort();
    std::vector<int> waitsFor;
    for (const auto& earlier : inFlight_.before(*use)) {
      waitsFor.push_back(
          static_cast<int>(std::find(operations_.begin(), operations_.end(), earlier) - operations_.begin()));
    }
    std::sort(waitsFor.begin(), waitsFor.end());
    operations_.push_back(std::make_shared<Exchange>("", 2, 0));
    inFlight_.add(operations_.back(), std::move(use));
    return waitsFor;
  }

  std::array<float, 64> floats_{};
  InFlight inFlight_;
  std::vector<std::shared_ptr<Activity>> operations_;
};

using Numbers = std::vector<int>;

TEST_F(InFlightTest, ARowOverOneTensorIsAChain) {
  const TensorView all = view(0, 8);
  EXPECT_EQ(add(all, all), Numbers{});
  for (int before = 0; before < 20; ++before) {
    EXPECT_EQ(add(all, all), Numbers{before});
  }
}

TEST_F(InFlightTest, WaitsForAllWhereNoneWritesAllOfItsMemory) {
  const TensorView none = view(0, 0);
  EXPECT_EQ(add(view(0, 4), none), Numbers{});
  EXPECT_EQ(add(view(4, 4), none), Numbers{});
  EXPECT_EQ(add(view(0, 8, 2), none), (Numbers{0, 1}));  // writes each second element of 0 to 14
  EXPECT_EQ(add(view(0, 8), none), (Numbers{0, 1, 2}));
  EXPECT_EQ(add(none, view(2, 4)), Numbers{3});
  EXPECT_EQ(add(none, view(2, 4)), Numbers{3});  // readers do not wait for each other
  EXPECT_EQ(add(view(2, 4), none), (Numbers{3, 4, 5}));
  // Operation 6 writes only a part of this one's memory, and so do the earlier ones.
  EXPECT_EQ(add(view(2, 4), view(32, 4)), (Numbers{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(add(view(32, 4), none), Numbers{7});
}

}  // namespace
}  // namespace shardwire::internal
