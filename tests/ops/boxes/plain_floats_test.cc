// Reductions, casts and sums of rows give the same bits whatever floating-point mode the calling thread has set, and
// leave the mode as it was.
#include "ops/boxes/plain_floats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "ops/boxes/cast_box.h"
#include "ops/boxes/expert_rows.h"
#include "ops/boxes/reduce_box.h"
#include "ops/reduce/isa_kernels.h"
#include "tests/ops/reduce/naive_numeric.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

using Bytes = std::vector<std::byte>;

// Subnormal and small normal numbers, of both signs.
Bytes smallNumbers(Random& random, std::size_t numElems, DType dtype) {
  Bytes bytes(numElems * elementBytes(dtype));
  const std::size_t lane = std::min(naiveLaneBytes(dtype), sizeof(std::uint64_t));
  for (std::size_t i = 0; i + lane <= bytes.size(); i += lane) {
    std::uint64_t bits = random();
    if (naiveIsFloat(dtype) && lane > 1) {
      const int numFraction = lane == 8 ? 52 : lane == 4 ? 23 : dtype == DType::kBFloat16 ? 7 : 10;
      const std::uint64_t sign = (bits >> 63) << (8 * lane - 1);
      bits = (bits & ((std::uint64_t{2} << numFraction) - 1)) | sign;
    }
    std::memcpy(bytes.data() + i, &bits, lane);
  }
  return bytes;
}

// Sets the mode that torch.set_flush_denormal(True) sets, and rounds upward.
class OtherMode {
 public:
  OtherMode() {
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
  }
  ~OtherMode() {
    std::fesetenv(&before_);
  }
  OtherMode(const OtherMode&) = delete;
  OtherMode& operator=(const OtherMode&) = delete;

  void expectUnchanged() const {
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
#if defined(__x86_64__)
    EXPECT_EQ(_mm_getcsr() & 0x8040U, 0x8040U);
#endif
  }

 private:
  std::fenv_t before_ = environment();
  static std::fenv_t environment() {
    std::fenv_t now;
    std::fegetenv(&now);
    return now;
  }
};

// `compute` fills its argument, of `numBytes` bytes.
void expectSameBits(std::size_t numBytes, const std::function<void(Bytes&)>& compute, const std::string& what) {
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    Bytes plain(numBytes);
    compute(plain);
    Bytes other(numBytes);
    {
      const OtherMode mode;
      compute(other);
      mode.expectUnchanged();
    }
    EXPECT_TRUE(plain == other) << what << " by " << kernels().name;
  }
}

TEST(PlainFloats, KeepTheBitsOfReductions) {
  Random random(1);
  for (int type = 0; type < kNumDTypes; ++type) {
    const auto dtype = static_cast<DType>(type);
    for (int number = 1; number < kNumReduceOps; ++number) {
      const auto op = static_cast<ReduceOp>(number);
      for (const std::size_t numElems : {17, 5000}) {
        if (!supportsReduction(dtype, op)) {
          continue;
        }
        const std::string what = std::string(dtypeName(dtype)) + " " + std::string(reduceOpName(op));
        std::vector<Bytes> inputs;
        std::vector<const std::byte*> sources;
        std::vector<StridedBox> boxes;
        const auto elem = static_cast<std::int64_t>(elementBytes(dtype));
        for (int i = 0; i < 3; ++i) {
          inputs.push_back(smallNumbers(random, 2 * numElems, dtype));
        }
        for (Bytes& each : inputs) {
          sources.push_back(each.data());
          boxes.push_back({each.data(), {2 * elem}});
        }
        const std::size_t numBytes = numElems * elementBytes(dtype);
        expectSameBits(
            numBytes, [&](Bytes& out) { reduceContiguous(out.data(), sources, numElems, dtype, op); }, what);
        expectSameBits(
            numBytes,
            [&](Bytes& out) {
              reduceBox({out.data(), {elem}}, boxes, {static_cast<std::int64_t>(numElems)}, dtype, op);
            },
            what + " of boxes");
      }
    }
  }
}

TEST(PlainFloats, KeepTheBitsOfCasts) {
  Random random(2);
  constexpr std::int64_t kElems = 3000;
  for (int from = 0; from < kNumDTypes; ++from) {
    for (int to = 0; to < kNumDTypes; ++to) {
      const auto source = static_cast<DType>(from);
      const auto target = static_cast<DType>(to);
      if (!supportsCast(source, target)) {
        continue;
      }
      Bytes input = smallNumbers(random, kElems, source);
      const auto step = static_cast<std::int64_t>(elementBytes(source));
      const auto outStep = static_cast<std::int64_t>(elementBytes(target));
      expectSameBits(
          static_cast<std::size_t>(kElems * outStep),
          [&](Bytes& out) {
            castBox({out.data(), {outStep}}, target, {input.data(), {step}}, source, {kElems}, StoreHint::kAuto);
          },
          std::string(dtypeName(source)) + " to " + std::string(dtypeName(target)));
    }
  }
}

TEST(PlainFloats, KeepTheBitsOfSumsOfRows) {
  Random random(3);
  constexpr std::size_t kTokens = 5;
  constexpr std::size_t kLanes = 300;
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Bytes rows = smallNumbers(random, 2 * kTokens * kLanes, dtype);
    ReturnedRows returned;
    returned.rows = rows.data();
    returned.rowBytes = kLanes * elementBytes(dtype);
    std::vector<std::int32_t> places(2 * kTokens, 0);
    const std::vector<float> weights(2 * kTokens, 0.25F);
    expectSameBits(
        kTokens * returned.rowBytes,
        [&](Bytes& out) { sumRows(out.data(), returned, places, weights.data(), 2, dtype); },
        std::string(dtypeName(dtype)));
  }
}

}  // namespace
}  // namespace shardwire::internal
