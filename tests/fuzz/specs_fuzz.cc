// The specs of several ranks, as a rank receives the specs in compile_op: decoded, merged, and planned for every rank.
#include "ops/plan/redistribute.h"
#include "ops/plan/survey.h"
#include "tests/fuzz/target.h"
#include "tests/support/random_spec.h"

namespace shardwire::fuzz {

void parse(std::string_view input) {
  const std::vector<std::string> encoded = splitParts(input, 4);
  for (const std::string& each : encoded) {
    const auto spec = internal::decodeSpec(each);
    if (spec.isOk()) {
      const std::string again = internal::encodeSpec(*spec);
      const auto reread = internal::decodeSpec(again);
      require(reread.isOk() && internal::encodeSpec(*reread) == again);
    }
    static_cast<void>(internal::whoPlansOf(each));
  }
  const auto global = internal::mergeEncoded(encoded);
  if (!global.isOk()) {
    return;
  }
  static_cast<void>(internal::surveyOf(*global));
  for (Rank rank = 0; rank < static_cast<Rank>(encoded.size()); ++rank) {
    const auto plan = internal::redistribute(*global, rank);
    require(!plan.isOk() || internal::validate(*plan).isOk());
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    testing::RandomOptions options;
    options.maxRanks = 4;
    options.hasForbiddenGaps = true;
    std::vector<std::string> parts;
    for (const LocalSpec& spec : testing::makeRandomCase(seed, options).specs) {
      parts.push_back(internal::encodeSpec(spec));
    }
    inputs.push_back(joinParts(parts));
  }
  return inputs;
}

}  // namespace shardwire::fuzz
