// The codec of specs. First the round trip, also of wrong values, and the exact bytes; then the beginning and the size;
// then refusals of other versions, truncation and impossible counts; at last random damage.
#include <gtest/gtest.h>

#include "ops/plan/global_spec.h"
#include "ops/wire/byte_codec.h"
#include "tests/support/hex.h"
#include "tests/support/random.h"
#include "tests/support/random_spec.h"
#include "tests/support/rounds.h"

namespace shardwire::internal {
namespace {

using namespace shardwire::testing;

void expectEqual(const LocalSpec& a, const LocalSpec& b) {
  EXPECT_EQ(a.tensors, b.tensors);
  EXPECT_EQ(a.inputs, b.inputs);
  EXPECT_EQ(a.outputs, b.outputs);
  EXPECT_EQ(a.allowGaps, b.allowGaps);
  EXPECT_EQ(a.overlap, b.overlap);
  EXPECT_EQ(a.whoPlans, b.whoPlans);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.localError, b.localError);
}

TEST(SpecCodec, ReturnsWhatWasEncoded) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    for (LocalSpec& spec : makeRandomCase(seed).specs) {
      if (seed % 5 == 0) {
        spec.localError = Status(StatusCode::kTypeError, "rank-local trouble");
      }
      spec.overlap = static_cast<Overlap>(seed % 3);
      spec.whoPlans = static_cast<WhoPlans>(seed % 3);
      const Result<LocalSpec> decoded = decodeSpec(encodeSpec(spec));
      ASSERT_TRUE(decoded.isOk()) << seed;
      expectEqual(decoded.value(), spec);
    }
  }
}

TEST(SpecCodec, CarriesWrongValuesToo) {
  LocalSpec spec;
  spec.tensors = {{"w", Dims{-1, INT64_MIN}}};
  spec.inputs = {{-7, {INT64_MAX, -3}, {{{{-5}, {1, 2, 3}}, {}}, {{{}, {INT64_MIN}}, {0, -1}}}, UINT64_MAX}};
  const Result<LocalSpec> decoded = decodeSpec(encodeSpec(spec));
  ASSERT_TRUE(decoded.isOk());
  expectEqual(decoded.value(), spec);
}

TEST(SpecCodec, KeepsItsBytes) {
  LocalSpec spec;
  spec.allowGaps = true;
  spec.name = "op";
  spec.tensors = {{"w", Dims{300, 4}, DType::kBFloat16, ReduceOp::kSum},
                  {"b", std::nullopt},
                  {"c", std::nullopt, DType::kFloat32, ReduceOp::kNone, DType::kBFloat16},
                  {"d", std::nullopt, std::nullopt, ReduceOp::kNone, DType::kBFloat16}};
  spec.inputs = {{1, {2, 4}, {{{{10, 0}, {2, 4}}, {0, 0}}}, 0x0123456789abcdef}};
  spec.outputs = {{0, {5, 4}, {{{{0, 0}, {2, 4}}, {3, 0}}}, 0}};
  EXPECT_EQ(toHex(encodeSpec(spec)),
            "04"      // version
            "01"      // allowGaps
            "00"      // no error
            "026f70"  // "op"
            "04"      // tensors
            "0177"
            "03"
            "0a"
            "01"
            "02d80408"  // "w", with shape and dtype: bfloat16, sum, [300, 4]
            "0162"
            "02"
            "0b"
            "00"  // "b", with dtype: float32, none
            "0163"
            "06"
            "0b"
            "0a"
            "00"  // "c", with both dtypes: float32 to bfloat16, none
            "0164"
            "04"
            "0a"
            "00"  // "d", with the outputs' dtype
            "01"  // inputs
            "01"
            "01"
            "efcdab8967452301"
            "020408"
            "01"
            "03"
            "021400"  // tensor 1, class, local [2, 4], one slice: fills the tensor, at the origin
            "01"      // outputs
            "00"
            "00"
            "020a08"
            "01"
            "00"
            "020000"
            "020408"
            "020600");
}

TEST(SpecCodec, SaysWhoPlansInItsBeginning) {
  LocalSpec spec;
  spec.allowGaps = true;
  spec.overlap = Overlap::kError;
  EXPECT_EQ(toHex(encodeSpec(spec)).substr(0, 4), "0405");
  EXPECT_EQ(whoPlansOf(encodeSpec(spec)), WhoPlans::kChosen);
  spec.whoPlans = WhoPlans::kEachRank;
  EXPECT_EQ(toHex(encodeSpec(spec)).substr(0, 4), "0415");
  EXPECT_EQ(whoPlansOf(encodeSpec(spec)), WhoPlans::kEachRank);
  spec.whoPlans = WhoPlans::kRank0;
  EXPECT_EQ(toHex(encodeSpec(spec)).substr(0, 4), "040d");
  EXPECT_EQ(whoPlansOf(encodeSpec(spec)), WhoPlans::kRank0);
  EXPECT_EQ(whoPlansOf(""), std::nullopt);
  EXPECT_EQ(whoPlansOf("\x04"), std::nullopt);
  EXPECT_EQ(whoPlansOf("\x03\x08"), std::nullopt);
  for (const char flags : {'\x06', '\x0e', '\x18', '\xff'}) {
    std::string bytes = encodeSpec(spec);
    bytes[1] = flags;
    EXPECT_FALSE(decodeSpec(bytes).isOk()) << static_cast<int>(flags);
    EXPECT_EQ(whoPlansOf(bytes), flags == '\x06'   ? std::optional(WhoPlans::kChosen)
                                 : flags == '\x0e' ? std::optional(WhoPlans::kRank0)
                                                   : std::nullopt)
        << static_cast<int>(flags);
  }
}

TEST(SpecCodec, TakesFewBytesPerSlice) {
  LocalSpec spec;
  spec.tensors = {{"w", Dims{1 << 20, 1 << 20, 1 << 10, 1 << 10}}};
  const std::size_t before = encodeSpec(spec).size();
  const Dims offset{(1 << 20) - 512, (1 << 20) - 512, 1000, 1000};
  for (int i = 0; i < 100; ++i) {
    spec.inputs.push_back({0, {512, 512, 24, 24}, {{{offset, {512, 512, 24, 24}}, Dims::filled(4, 0)}}, 1});
  }
  EXPECT_LE(encodeSpec(spec).size() - before, 100U * 64U);
  // A slice placed inside a larger local tensor.
  const std::size_t one = encodeSpec(spec).size();
  LocalTensor& last = spec.inputs.back();
  last.slices.push_back({{offset, {512, 512, 24, 24}}, {100000, 100000, 1000, 1000}});
  EXPECT_LE(encodeSpec(spec).size() - one, 64U);
}

TEST(SpecCodec, RefusesAnotherVersionByName) {
  std::string bytes = encodeSpec({});
  bytes[0] = 9;
  const Status status = decodeSpec(bytes).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("format version 9, this build reads version 4"), std::string::npos)
      << status.message();
}

TEST(SpecCodec, RefusesEveryTruncationAndTrailingBytes) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (const LocalSpec& spec : makeRandomCase(seed).specs) {
      const std::string bytes = encodeSpec(spec);
      for (std::size_t length = 0; length < bytes.size(); ++length) {
        ASSERT_EQ(decodeSpec(std::string_view(bytes).substr(0, length)).status().code(), StatusCode::kInvalidArgument)
            << seed;
      }
      EXPECT_FALSE(decodeSpec(bytes + '\0').isOk());
    }
  }
}

TEST(SpecCodec, RefusesCountsThatTheBytesCannotHold) {
  // version, flags, no error, no name, then 2^60 tensors.
  ByteWriter out;
  out.fixed<std::uint32_t>(2);
  out.fixed<std::uint8_t>(0);
  out.varint(std::uint64_t{1} << 60);
  EXPECT_FALSE(decodeSpec(out.take()).isOk());
}

// Damaged bytes give an error or another spec, never a crash (this test runs under the sanitizers too); and the other
// spec merges or is refused.
TEST(SpecCodec, SurvivesDamage) {
  Random random(11);
  std::size_t numAccepted = 0;
  for (int i = 0; i < rounds(20000); ++i) {
    std::vector<LocalSpec> specs = makeRandomCase(static_cast<std::uint64_t>(i % 50)).specs;
    std::string bytes = encodeSpec(specs[0]);
    for (std::int64_t flips = random.between(1, 4); flips > 0; --flips) {
      bytes[static_cast<std::size_t>(random.between(0, std::ssize(bytes) - 1))] = static_cast<char>(random.bits());
    }
    if (random.chance(20)) {
      bytes.resize(static_cast<std::size_t>(random.between(0, std::ssize(bytes))));
    }
    Result<LocalSpec> decoded = decodeSpec(bytes);
    if (decoded.isOk()) {
      ++numAccepted;
      specs[0] = std::move(decoded).value();
      if (const Result<GlobalSpec> merged = mergeSpecs(specs); merged.isOk()) {
        EXPECT_NE(fingerprint(merged.value()), 0U);
      }
    }
  }
  EXPECT_GT(numAccepted, 100U);
}

}  // namespace
}  // namespace shardwire::internal
