// Every pair of types against an independent element loop, on random geometry, on every instruction set: the same bits,
// NaN included.
#include "ops/boxes/cast_box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "ops/boxes/reduce_box.h"
#include "ops/reduce/isa_kernels.h"
#include "tests/support/naive_cast.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

constexpr StoreHint kCastHints[] = {StoreHint::kAuto, StoreHint::kCached, StoreHint::kStream};

// Any bits; most wide values near 1, or where the narrow types round, underflow and overflow.
void fillLanes(Random& random, std::byte* bytes, std::size_t size, DType dtype) {
  const std::size_t lane = naiveLaneBytes(dtype);
  for (std::size_t i = 0; i + lane <= size; i += lane) {
    std::uint64_t bits = random();
    if (lane >= 4 && pick(random, 0, 3) != 0) {
      const double value =
          std::ldexp(1 + static_cast<double>(pick(random, 0, 4096)) / 4096, static_cast<int>(pick(random, -30, 18)));
      const double tie = pick(random, 0, 1) == 0 ? value : std::nextafter(value, pick(random, 0, 1) == 0 ? 1e9 : -1e9);
      const float small = static_cast<float>(pick(random, 0, 1) == 0 ? value : -value);
      lane == 8 ? std::memcpy(&bits, &tie, 8) : std::memcpy(&bits, &small, 4);
    }
    std::memcpy(bytes + i, &bits, lane);
  }
}

Arena castArena(Random& random, const Dims& shape, DType dtype, bool mayExpand) {
  Arena arena = randomArena(random, shape, elementBytes(dtype), mayExpand);
  const auto offset = static_cast<std::size_t>(arena.box.bytes - arena.memory.data());
  fillLanes(random, arena.box.bytes, arena.memory.size() - offset, dtype);
  return arena;
}

std::vector<std::byte> expectedCast(const Arena& dst, const Arena& src, const Dims& shape, CastPair pair) {
  std::vector<std::byte> expected = dst.memory;
  const std::ptrdiff_t base = dst.box.bytes - dst.memory.data();
  forEachIndex(shape, [&](const Dims& index) {
    naiveCast(pair.from, src.box.bytes + offsetOf(src.box, index), pair.to,
              expected.data() + base + offsetOf(dst.box, index));
  });
  return expected;
}

void checkCast(const Arena& dst, const Arena& src, const Dims& shape, CastPair pair, StoreHint hint) {
  const std::vector<std::byte> expected = expectedCast(dst, src, shape, pair);
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    Arena result = dst;
    result.box.bytes = result.memory.data() + (dst.box.bytes - dst.memory.data());
    castBox(result.box, pair.to, src.box, pair.from, shape, hint);
    ASSERT_TRUE(result.memory == expected)
        << kernels().name << " " << dtypeName(pair.from) << " to " << dtypeName(pair.to) << ", shape "
        << toString(shape) << " dst strides " << toString(dst.box.byteStrides) << " src strides "
        << toString(src.box.byteStrides);
  }
}

TEST(CastBox, TableHoldsExactlyWhatIsSupported) {
  for (const Isa isa : isasHere()) {
    for (int from = 0; from < kNumDTypes; ++from) {
      for (int to = 0; to < kNumDTypes; ++to) {
        const bool isCast = from != to && supportsCast(static_cast<DType>(from), static_cast<DType>(to));
        EXPECT_EQ(kernelsOf(isa)->castLanes[from][to] != nullptr, isCast) << from << " to " << to;
      }
    }
  }
  EXPECT_EQ(allCasts().size(), 9u * 8 + 3 * 2);
}

TEST(CastBox, MatchesElementLoopOnRandomGeometry) {
  const std::vector<CastPair> pairs = allCasts();
  for (std::uint64_t seed = 0; seed < 12 * pairs.size(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Random random(seed);
    const CastPair pair = pairs[seed % pairs.size()];
    const Dims shape =
        randomShape(random, static_cast<int>(pick(random, 0, seed % 10 == 0 ? 16 : 5)), seed % 5 == 0 ? 20000 : 700);
    const Arena dst = castArena(random, shape, pair.to, false);
    const Arena src = castArena(random, shape, pair.from, true);
    checkCast(dst, src, shape, pair, kCastHints[seed % 3]);
  }
}

// Rows long enough for every path of the row kernels: heads, one stream, two streams, several stretches, ragged ends,
// any alignment.
TEST(CastBox, MatchesElementLoopOnLongRows) {
  const std::vector<CastPair> pairs = {{DType::kFloat32, DType::kBFloat16},   {DType::kBFloat16, DType::kFloat32},
                                       {DType::kFloat32, DType::kFloat16},    {DType::kFloat64, DType::kFloat8E4M3FN},
                                       {DType::kFloat8E5M2, DType::kFloat64}, {DType::kComplex64, DType::kComplex128}};
  for (const CastPair pair : pairs) {
    const auto to = static_cast<std::int64_t>(elementBytes(pair.to));
    const auto from = static_cast<std::int64_t>(elementBytes(pair.from));
    for (const std::int64_t cols : {31, 255, 511, 513, 1000, 2048, 4096, 4100, 9001, 70001}) {
      for (const StoreHint hint : kCastHints) {
        Random random(static_cast<std::uint64_t>(cols));
        const Dims shape{3, cols};
        Arena dst;
        Arena src;
        dst.memory.resize(static_cast<std::size_t>(cols * 4 * to + 400));
        src.memory.resize(static_cast<std::size_t>(cols * 4 * from + 400));
        fillLanes(random, src.memory.data(), src.memory.size(), pair.from);
        dst.box = {dst.memory.data() + pick(random, 0, 64), {(cols + 5) * to, to}};
        src.box = {src.memory.data() + pick(random, 0, 64), {(cols + 3) * from, from}};
        checkCast(dst, src, shape, pair, hint);
      }
    }
  }
}

TEST(CastBox, EveryCodeOfEveryNarrowType) {
  for (const CastPair pair : allCasts()) {
    if (elementBytes(pair.from) > 2) {
      continue;
    }
    const std::size_t bytes = elementBytes(pair.from);
    const std::size_t count = std::size_t{1} << (8 * bytes);
    Arena src;
    src.memory.resize(count * bytes);
    for (std::size_t code = 0; code < count; ++code) {
      std::memcpy(src.memory.data() + code * bytes, &code, bytes);
    }
    src.box = {src.memory.data(), {static_cast<std::int64_t>(bytes)}};
    Arena dst;
    dst.memory.resize(count * elementBytes(pair.to));
    dst.box = {dst.memory.data(), {static_cast<std::int64_t>(elementBytes(pair.to))}};
    checkCast(dst, src, {static_cast<std::int64_t>(count)}, pair, StoreHint::kAuto);
  }
}

TEST(CastBox, PacksAndUnpacks) {
  Random random(3);
  const Dims shape{4, 7, 5};
  const Arena src = castArena(random, shape, DType::kFloat32, false);
  std::vector<std::byte> packed(2 * 140), expected(2 * 140);
  EXPECT_EQ(packCastBox(packed.data(), DType::kBFloat16, src.box, DType::kFloat32, shape), packed.size());
  std::size_t at = 0;
  forEachIndex(shape, [&](const Dims& index) {
    naiveCast(DType::kFloat32, src.box.bytes + offsetOf(src.box, index), DType::kBFloat16, expected.data() + 2 * at++);
  });
  EXPECT_EQ(packed, expected);
  std::vector<double> wide(140);
  unpackCastBox({reinterpret_cast<std::byte*>(wide.data()), packedByteStrides(shape, 8)}, DType::kFloat64,
                packed.data(), DType::kBFloat16, shape);
  for (std::size_t i = 0; i < wide.size(); ++i) {
    double value = 0;
    naiveCast(DType::kBFloat16, packed.data() + 2 * i, DType::kFloat64, reinterpret_cast<std::byte*>(&value));
    EXPECT_EQ(std::memcmp(&wide[i], &value, 8), 0) << i;
  }
}

TEST(CastBox, IsACopyBetweenEqualTypes) {
  std::vector<std::uint32_t> from = {0x7F800001, 0xFFFFFFFF, 1}, to(3);  // bits that a computation would change
  castBox({reinterpret_cast<std::byte*>(to.data()), {4}}, DType::kFloat32,
          {reinterpret_cast<std::byte*>(from.data()), {4}}, DType::kFloat32, {3});
  EXPECT_EQ(to, from);
}

// A reduction into another type: the accumulated value is rounded once. Sums here are exact in the accumulator.
TEST(ReduceBox, RoundsOnceIntoAnotherType) {
  for (const CastPair pair : allCasts()) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kProd}) {
      if (!supportsReduction(pair.from, op)) {
        continue;
      }
      const bool isComplex = naiveIsComplex(pair.from);
      const bool isWide = pair.from == DType::kFloat64 || pair.from == DType::kComplex128;
      const DType acc = isWide ? pair.from : (isComplex ? DType::kComplex64 : DType::kFloat32);
      Random random(static_cast<std::uint64_t>(static_cast<int>(pair.from) * 100 + static_cast<int>(op)));
      const Dims shape{3, 300};
      for (const std::size_t numSources : {2, 3}) {
        std::deque<Arena> sources;  // an arena points into its own memory
        std::vector<StridedBox> boxes;
        for (std::size_t i = 0; i < numSources; ++i) {
          sources.push_back(castArena(random, shape, pair.from, false));
        }
        for (const Arena& source : sources) {
          boxes.push_back(source.box);
        }
        const Arena dst = castArena(random, shape, pair.to, false);
        std::vector<std::byte> expected = dst.memory;
        forEachIndex(shape, [&](const Dims& index) {
          std::byte lanes[3][16], sum[16];
          const std::byte* elements[3];
          for (std::size_t i = 0; i < numSources; ++i) {
            naiveCast(pair.from, boxes[i].bytes + offsetOf(boxes[i], index), acc, lanes[i]);
            elements[i] = lanes[i];
          }
          naiveReduce(sum, std::span(elements, numSources), acc, op);
          naiveCast(acc, sum, pair.to,
                    expected.data() + (dst.box.bytes - dst.memory.data()) + offsetOf(dst.box, index));
        });
        for (const Isa isa : isasHere()) {
          useKernelsForTest(isa);
          for (const StoreHint hint : kCastHints) {
            Arena result = dst;
            result.box.bytes = result.memory.data() + (dst.box.bytes - dst.memory.data());
            reduceBox(result.box, pair.to, boxes, shape, pair.from, op, hint);
            const auto differs = std::mismatch(expected.begin(), expected.end(), result.memory.begin());
            ASSERT_TRUE(result.memory == expected)
                << "first at byte " << differs.first - expected.begin() << ": " << static_cast<int>(*differs.second)
                << ", not " << static_cast<int>(*differs.first) << ", " << kernels().name << " " << reduceOpName(op)
                << " of " << numSources << ", " << dtypeName(pair.from) << " to " << dtypeName(pair.to);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardwire::internal
