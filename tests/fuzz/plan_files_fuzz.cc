// A rank's plan with everything around it, as rank 0 ships the plan and as a file has it. The input is what the
// checksums cover: a file with a wrong checksum is no plan, and needs no search.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "backend/plans/plan_file.h"
#include "ops/plan/hash.h"
#include "ops/wire/byte_codec.h"
#include "tests/fuzz/target.h"
#include "tests/support/random_spec.h"

namespace shardwire::fuzz {
namespace {

using namespace internal;

constexpr std::size_t kRowHeadBytes = 13;

// encodeRow() with any bytes behind the checksum.
std::string rowOf(std::string_view rest) {
  static const std::string head = encodeRow({}).substr(0, 5);
  Hasher hasher;
  hasher.add(rest);
  ByteWriter checksum;
  checksum.fixed(hasher.value());
  return head + checksum.take() + std::string(rest);
}

struct Folder {
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path = fmt::format("{}/shardwire-fuzz-{}", std::filesystem::temp_directory_path().string(), ::getpid());
};

}  // namespace

void parse(std::string_view input) {
  const std::string row = rowOf(input);
  const auto decoded = decodeRow(row);
  if (decoded.isOk()) {
    require(decodeRow(encodeRow(*decoded)).isOk());
    require(checkRow(*decoded, decoded->plan.rank, decoded->plan.worldSize, decoded->agreed).isOk());
  }
  static const Folder folder;
  static const PlanFile file(folder.path, {.mode = "local"});
  static const std::string path = [] {
    require(file.write({}).isOk());
    return file.path();
  }();
  const std::string key = std::filesystem::path(path).stem();
  std::string bytes = std::string("SWPF\1", 5) + key + row;
  bytes += asText(digestOf(std::span<const std::string>(&bytes, 1)));
  require(static_cast<bool>(std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes));
  const auto read = file.read(decoded.isOk() ? decoded->agreed : LocalSpec{});
  require(!read.has_value() || decoded.isOk());
}

std::vector<std::string> seeds() {
  std::vector<std::string> inputs;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto global = mergeSpecs(testing::makeRandomCase(seed, {.maxRanks = 3}).specs);
    const auto plan = global.isOk() ? redistribute(*global, 0) : Result<Plan>(global.status());
    if (plan.isOk()) {
      inputs.push_back(encodeRow({specOf(*global, 0), hashOf({}, 1), *plan}).substr(kRowHeadBytes));
    }
  }
  return inputs;
}

}  // namespace shardwire::fuzz
