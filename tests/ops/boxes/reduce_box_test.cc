// Every dtype and op against an independent element loop, on random geometry, on every instruction set: the same bits.
// First the table of kernels, then boxes, long rows, destinations that are sources, one source, and at last contiguous
// reductions of many sources.
#include "ops/boxes/reduce_box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "ops/reduce/isa_kernels.h"
#include "tests/ops/reduce/naive_numeric.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

// Values with sums and products that depend on each value, and now and then any bits at all (NaN, infinities,
// subnormals).
void fillRandom(Random& random, std::byte* bytes, std::size_t size, DType dtype) {
  const std::size_t lane = naiveLaneBytes(dtype);
  for (std::size_t i = 0; i + lane <= size; i += lane) {
    std::uint64_t bits = random();
    if (naiveIsFloat(dtype) && lane >= 4 && pick(random, 0, 15) != 0) {
      const std::uint64_t sign = bits & 1;
      bits = lane == 4 ? 0x3F000000u + (bits >> 40) % 0x1800000u + (sign << 31)
                       : 0x3FE0000000000000u + (bits >> 8) % 0x30000000000000u + (sign << 63);
    }
    std::memcpy(bytes + i, &bits, lane);
  }
}

Arena filledArena(Random& random, const Dims& shape, DType dtype, bool mayExpand) {
  Arena arena = randomArena(random, shape, elementBytes(dtype), mayExpand);
  const std::size_t offset = static_cast<std::size_t>(arena.box.bytes - arena.memory.data());
  fillRandom(random, arena.box.bytes, arena.memory.size() - offset, dtype);
  return arena;
}

std::vector<std::byte> expectedReduction(const Arena& dst, const std::vector<StridedBox>& sources, const Dims& shape,
                                         DType dtype, ReduceOp op) {
  std::vector<std::byte> expected = dst.memory;
  const std::ptrdiff_t base = dst.box.bytes - dst.memory.data();
  std::vector<const std::byte*> elements(sources.size());
  forEachIndex(shape, [&](const Dims& index) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      elements[i] = sources[i].bytes + offsetOf(sources[i], index);
    }
    naiveReduce(expected.data() + base + offsetOf(dst.box, index), elements, dtype, op);
  });
  return expected;
}

struct Case {
  DType dtype;
  ReduceOp op;
};

std::vector<Case> allCases() {
  std::vector<Case> cases;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (int op = 1; op < kNumReduceOps; ++op) {
      if (supportsReduction(static_cast<DType>(dtype), static_cast<ReduceOp>(op))) {
        cases.push_back({static_cast<DType>(dtype), static_cast<ReduceOp>(op)});
      }
    }
  }
  return cases;
}

// Runs one reduction on every instruction set and compares with the element loop.
void checkReduction(const Arena& dst, const std::vector<StridedBox>& sources, const Dims& shape, Case c,
                    StoreHint hint) {
  const std::vector<std::byte> expected = expectedReduction(dst, sources, shape, c.dtype, c.op);
  for (const Isa isa : isasHere()) {
    useKernelsForTest(isa);
    Arena result = dst;
    result.box.bytes = result.memory.data() + (dst.box.bytes - dst.memory.data());
    reduceBox(result.box, sources, shape, c.dtype, c.op, hint);
    const auto differs = std::mismatch(expected.begin(), expected.end(), result.memory.begin());
    ASSERT_TRUE(result.memory == expected)
        << kernels().name << " " << dtypeName(c.dtype) << " " << reduceOpName(c.op) << " of " << sources.size()
        << ", shape " << toString(shape) << ", dst strides " << toString(dst.box.byteStrides) << ", first at byte "
        << differs.first - expected.begin() - (dst.box.bytes - dst.memory.data()) << ": "
        << static_cast<int>(*differs.second) << ", not " << static_cast<int>(*differs.first);
  }
}

TEST(ReduceBox, TableHoldsExactlyWhatIsSupported) {
  for (const Isa isa : isasHere()) {
    for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
      for (int op = 1; op < kNumReduceOps; ++op) {
        EXPECT_EQ(kernelsOf(isa)->reduce[dtype][op].encode != nullptr,
                  supportsReduction(static_cast<DType>(dtype), static_cast<ReduceOp>(op)))
            << dtype << " " << op;
      }
    }
  }
}

TEST(ReduceBox, MatchesElementLoopOnRandomGeometry) {
  const int numSources[] = {2, 2, 3, 5, 9};
  for (const Case c : allCases()) {
    for (std::uint64_t seed = 0; seed < 15; ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed);
      Random random(seed * 1000 + static_cast<std::uint64_t>(c.dtype) * 10 + static_cast<std::uint64_t>(c.op));
      const Dims shape = randomShape(random, static_cast<int>(pick(random, 0, seed == 0 ? 16 : 4)), 3000);
      std::deque<Arena> arenas;  // never moved: boxes point into the arenas
      std::vector<StridedBox> sources;
      for (int i = 0; i < numSources[seed % 5]; ++i) {
        arenas.push_back(filledArena(random, shape, c.dtype, true));
        sources.push_back(arenas.back().box);
      }
      const Arena dst = filledArena(random, shape, c.dtype, false);
      ASSERT_NO_FATAL_FAILURE(checkReduction(dst, sources, shape, c, static_cast<StoreHint>(seed % 3)));
    }
  }
}

// Rows that take the paths for runs: fused, fetched ahead, streamed, with ragged ends and unaligned addresses.
TEST(ReduceBox, MatchesElementLoopOnLongRows) {
  for (const Case c : allCases()) {
    const std::int64_t elem = static_cast<std::int64_t>(elementBytes(c.dtype));
    for (const std::int64_t rowElems : {130, 1031, 5000}) {
      for (const std::size_t numSources : {2, 4}) {
        SCOPED_TRACE(::testing::Message() << "row of " << rowElems);
        Random random(static_cast<std::uint64_t>(rowElems));
        const Dims shape{3, rowElems};
        const auto arena = [&] {
          Arena made;
          const std::int64_t gap = elem * pick(random, 0, 9), offset = pick(random, 0, 70);
          made.memory.resize(static_cast<std::size_t>(offset + 3 * (rowElems * elem + gap) + 100));
          made.box = {made.memory.data() + offset, {rowElems * elem + gap, elem}};
          fillRandom(random, made.box.bytes, made.memory.size() - static_cast<std::size_t>(offset), c.dtype);
          return made;
        };
        std::deque<Arena> arenas;  // never moved: boxes point into the arenas
        std::vector<StridedBox> sources;
        for (std::size_t i = 0; i < numSources; ++i) {
          arenas.push_back(arena());
          sources.push_back(arenas.back().box);
        }
        const StoreHint hint = rowElems == 1031 ? StoreHint::kStream : StoreHint::kCached;
        ASSERT_NO_FATAL_FAILURE(checkReduction(arena(), sources, shape, c, hint));
      }
    }
  }
}

TEST(ReduceBox, DestinationMayBeAnySource) {
  for (const Case c : allCases()) {
    for (std::size_t numSources : {2, 3}) {
      for (std::size_t same = 0; same < numSources; ++same) {
        for (const Isa isa : isasHere()) {
          useKernelsForTest(isa);
          Random random(same);
          const Dims shape{7, 450};
          std::deque<Arena> arenas;  // never moved: boxes point into the arenas
          std::vector<StridedBox> sources;
          for (std::size_t i = 0; i < numSources; ++i) {
            arenas.push_back(filledArena(random, shape, c.dtype, false));
            sources.push_back(arenas.back().box);
          }
          const std::vector<std::byte> expected = expectedReduction(arenas[same], sources, shape, c.dtype, c.op);
          reduceBox(sources[same], sources, shape, c.dtype, c.op);
          ASSERT_TRUE(arenas[same].memory == expected)
              << dtypeName(c.dtype) << " " << reduceOpName(c.op) << " into source " << same;
        }
      }
    }
  }
}

TEST(ReduceBox, OneSourceIsACopy) {
  const std::vector<float> source{1.5f, -2.0f, 3.25f, 4.0f};
  std::vector<float> result(2);
  const std::vector<StridedBox> sources{{reinterpret_cast<std::byte*>(const_cast<float*>(source.data())), {8}}};
  reduceBox({reinterpret_cast<std::byte*>(result.data()), {4}}, sources, {2}, DType::kFloat32, ReduceOp::kMean);
  EXPECT_EQ(result, (std::vector<float>{1.5f, 3.25f}));
}

TEST(ReduceContiguous, MatchesElementLoopForManySources) {
  for (const Case c : allCases()) {
    const std::size_t elem = elementBytes(c.dtype);
    for (const std::size_t numSources : {1, 2, 3, 40}) {
      for (const std::size_t numElems : {0, 1, 15, 2500}) {
        Random random(numElems + numSources);
        std::vector<std::vector<std::byte>> memory(numSources, std::vector<std::byte>(numElems * elem + 1));
        std::vector<const std::byte*> sources;
        for (std::vector<std::byte>& one : memory) {
          fillRandom(random, one.data() + 1, numElems * elem, c.dtype);
          sources.push_back(one.data() + 1);
        }
        std::vector<std::byte> expected(numElems * elem);
        for (std::size_t i = 0; i < numElems; ++i) {
          std::vector<const std::byte*> elements = sources;
          for (const std::byte*& element : elements) {
            element += i * elem;
          }
          naiveReduce(expected.data() + i * elem, elements, c.dtype, c.op);
        }
        for (const Isa isa : isasHere()) {
          useKernelsForTest(isa);
          std::vector<std::byte> result(numElems * elem);
          reduceContiguous(result.data(), sources, numElems, c.dtype, c.op);
          ASSERT_TRUE(result == expected) << kernels().name << " " << dtypeName(c.dtype) << " " << reduceOpName(c.op)
                                          << " " << numElems << " of " << numSources;
        }
      }
    }
  }
}

TEST(ReduceBox, EachTableOfKernelsHasTheNameOfItsIsa) {
  constexpr std::array<const char*, kNumIsas> kNames = {"baseline", "avx2", "avx512", "neon"};
  for (int isa = 0; isa < kNumIsas; ++isa) {
    if (const KernelTable* table = kernelsOf(static_cast<Isa>(isa)); table != nullptr) {
      EXPECT_STREQ(table->name, kNames[isa]);
    }
  }
}

}  // namespace
}  // namespace shardwire::internal
