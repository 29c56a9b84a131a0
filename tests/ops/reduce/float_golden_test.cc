// The small floating types convert exactly as torch 2.13 does: digests of torch's results, made by float_golden.py.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ops/reduce/isa_kernels.h"
#include "tests/ops/reduce/naive_numeric.h"
#include "tests/support/random_boxes.h"

namespace shardwire::internal {
namespace {

struct Golden {
  DType dtype;
  std::uint64_t encoded;  // of every 4099th float that is no NaN
  std::uint64_t decoded;  // of every code, any NaN as 0x7FC00000
};

constexpr Golden kGoldens[] = {
    {DType::kFloat16, 0x4dd78fca5341d609u, 0x1f87f165810ea7c5u},
    {DType::kBFloat16, 0x642f1c8bcc01b441u, 0xcf8e09175d8f5ba5u},
    {DType::kFloat8E4M3FN, 0x9825d4bc16f0715au, 0xdad1d9c50f749ca5u},
    {DType::kFloat8E5M2, 0xa16bee626860b2c0u, 0x6c1e56b6fb09c905u},
    {DType::kFloat8E4M3FNUZ, 0xc743dcc0c52c4e5fu, 0xf51851cb11c63018u},
    {DType::kFloat8E5M2FNUZ, 0x9549ca243a709b73u, 0x94ae6fc493d49818u},
    {DType::kFloat8E8M0FNU, 0x8dd6d7acc7c891e6u, 0x6d2c8b41c3f0e5a5u},
};

std::uint64_t fnv1a(const void* bytes, std::size_t size) {
  std::uint64_t digest = 0xCBF29CE484222325u;
  for (std::size_t i = 0; i < size; ++i) {
    digest = (digest ^ static_cast<const std::uint8_t*>(bytes)[i]) * 0x100000001B3u;
  }
  return digest;
}

std::vector<float> goldenFloats() {
  std::vector<float> floats;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += 4099) {
    const std::uint32_t bits32 = static_cast<std::uint32_t>(bits);
    float value;
    std::memcpy(&value, &bits32, sizeof(value));
    if (!std::isnan(value)) {
      floats.push_back(value);
    }
  }
  return floats;
}

const ReduceKernel& sumOf(Isa isa, DType dtype) {
  return kernelsOf(isa)->reduce[static_cast<int>(dtype)][static_cast<int>(ReduceOp::kSum)];
}

TEST(FloatGolden, EncodesLikeTorch) {
  const std::vector<float> floats = goldenFloats();
  for (const Golden& golden : kGoldens) {
    std::vector<std::byte> codes(floats.size() * elementBytes(golden.dtype));
    for (const Isa isa : isasHere()) {
      sumOf(isa, golden.dtype).encode(codes.data(), floats.data(), floats.size(), 0);
      EXPECT_EQ(fnv1a(codes.data(), codes.size()), golden.encoded)
          << dtypeName(golden.dtype) << " " << kernelsOf(isa)->name;
    }
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const std::uint32_t code = naiveEncode(golden.dtype, floats[i]);
      std::memcpy(codes.data() + i * elementBytes(golden.dtype), &code, elementBytes(golden.dtype));
    }
    EXPECT_EQ(fnv1a(codes.data(), codes.size()), golden.encoded) << dtypeName(golden.dtype) << " naive";
  }
}

TEST(FloatGolden, DecodesLikeTorch) {
  for (const Golden& golden : kGoldens) {
    const std::size_t bytes = elementBytes(golden.dtype), numCodes = std::size_t{1} << (8 * bytes);
    std::vector<std::byte> codes(numCodes * bytes);
    for (std::size_t code = 0; code < numCodes; ++code) {
      std::memcpy(codes.data() + code * bytes, &code, bytes);
    }
    const auto digest = [](std::vector<float> floats) {
      for (float& value : floats) {
        value = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
      }
      return fnv1a(floats.data(), floats.size() * sizeof(float));
    };
    std::vector<float> floats(numCodes);
    for (const Isa isa : isasHere()) {
      sumOf(isa, golden.dtype).decode(floats.data(), codes.data(), numCodes, 0);
      EXPECT_EQ(digest(floats), golden.decoded) << dtypeName(golden.dtype) << " " << kernelsOf(isa)->name;
    }
    for (std::size_t code = 0; code < numCodes; ++code) {
      floats[code] = naiveDecode(golden.dtype, static_cast<std::uint32_t>(code));
    }
    EXPECT_EQ(digest(floats), golden.decoded) << dtypeName(golden.dtype) << " naive";
  }
}

TEST(FloatGolden, NanEncodesAsTheOneNan) {
  const std::uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF,
                                0xFF800001, 0x7FC12345, 0xFFC54321, 0x7F812345};
  for (const Golden& golden : kGoldens) {
    const std::uint32_t expected = golden.dtype == DType::kFloat8E8M0FNU ? 255 : naiveFormat(golden.dtype).nan;
    for (const Isa isa : isasHere()) {
      std::byte codes[sizeof(nans)] = {};
      sumOf(isa, golden.dtype).encode(codes, nans, std::size(nans), 0);
      for (std::size_t i = 0; i < std::size(nans); ++i) {
        std::uint32_t code = 0;
        std::memcpy(&code, codes + i * elementBytes(golden.dtype), elementBytes(golden.dtype));
        EXPECT_EQ(code, expected) << dtypeName(golden.dtype) << " " << kernelsOf(isa)->name << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace shardwire::internal
