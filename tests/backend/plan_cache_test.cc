// Plans made earlier: in memory with a bound, on disk in whatever state, and the vote of ranks with different finds.
// Last the programs of collectives in memory.
#include "backend/plans/plan_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "backend/communicator/program_cache.h"
#include "backend/plans/plan_file.h"
#include "shardwire/offline.h"
#include "tests/backend/thread_group.h"

namespace shardwire::internal {
namespace {

namespace fs = std::filesystem;
using From = PlanProvenance::From;

class Folder {
 public:
  Folder() {
    std::string name = fs::temp_directory_path() / "shardwire-plans-XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_; }
  std::vector<fs::path> files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(path_)) {
      if (entry.is_regular_file()) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    return files;
  }

 private:
  fs::path path_;
};

// Every rank has `rows` rows, and wants all.
LocalSpec gather(Rank rank, int n, std::int64_t rows, WhoPlans who, const std::string& buildDir = "") {
  LocalSpec spec;
  spec.tensors.push_back({.name = "", .shape = Dims{rows * n}, .dtype = DType::kInt64});
  spec.inputs.push_back({.localShape = {rows}, .slices = {{.slice = {{rank * rows}, {rows}}, .localOffset = {0}}}});
  spec.outputs.push_back({.localShape = {rows * n}, .slices = {{.slice = {{0}, {rows * n}}, .localOffset = {0}}}});
  spec.whoPlans = who;
  spec.buildDir = buildDir;
  return spec;
}

void runGather(Communicator& group, CompiledOp& op, std::int64_t rows) {
  std::vector<std::int64_t> input(static_cast<std::size_t>(rows), group.rank());
  std::vector<std::int64_t> output(static_cast<std::size_t>(rows * group.worldSize()), -1);
  const TensorView in = viewOf(input);
  const TensorView out = viewOf(output);
  expectOk(op.run({&in, 1}, {&out, 1}));
  for (std::size_t i = 0; i < output.size(); ++i) {
    ASSERT_EQ(output[i], static_cast<std::int64_t>(i) / rows);
  }
}

// The origin of this rank's plan. The plan runs, and equals the plan that planning alone makes.
From compile(Communicator& group, const LocalSpec& spec, std::int64_t rows, std::string* whyNoFile = nullptr) {
  auto op = group.compileOp(spec);
  EXPECT_TRUE(op.isOk()) << op.status().message();
  if (!op.isOk()) {
    return From::kPlanned;
  }
  runGather(group, **op, rows);
  std::vector<LocalSpec> all;
  for (Rank rank = 0; rank < group.worldSize(); ++rank) {
    all.push_back(gather(rank, group.worldSize(), rows, WhoPlans::kChosen));
  }
  const auto alone = planOffline(all, group.rank());
  EXPECT_EQ((*op)->planBytes(), (*alone)->planBytes());
  if (whyNoFile != nullptr) {
    *whyNoFile = (*op)->planProvenance().whyNoFile;
  } else {
    EXPECT_EQ((*op)->planProvenance().whyNoFile, "");
  }
  return (*op)->planProvenance().from;
}

// ---- in memory

OpFacts factsOf(std::int64_t rows) {
  std::vector<LocalSpec> specs = {gather(0, 1, rows, WhoPlans::kChosen)};
  return *offlineFactsOf(**planOffline(specs, 0));
}

TEST(PlanCache, KeepsWhatIsAskedForTwiceUpToItsBound) {
  PlanCache cache;
  const OpFacts facts = factsOf(2);
  const auto specsOf = [](int i) { return std::vector<std::string>{fmt::format("spec {}", i), "of rank 1"}; };
  const auto has = [&](int i) {
    const auto specs = specsOf(i);
    return cache.find(PlanOrigin(specs)).has_value();
  };
  const auto remember = [&](int i, bool isSure) {
    const auto specs = specsOf(i);
    cache.remember(PlanOrigin(specs), facts, isSure);
  };
  remember(0, false);
  EXPECT_FALSE(has(0));
  EXPECT_EQ(cache.numKept(), 0u);
  remember(0, false);
  EXPECT_TRUE(has(0));
  for (int i = 1; i < static_cast<int>(PlanCache::kMaxEntries); ++i) {
    remember(i, true);
  }
  EXPECT_TRUE(has(0));  // and is the last to go now
  remember(1000, true);
  EXPECT_EQ(cache.numKept(), PlanCache::kMaxEntries);
  EXPECT_TRUE(has(0) && has(1000) && has(2));
  EXPECT_FALSE(has(1));
  // Equal bytes that are cut elsewhere belong to another op.
  const std::vector<std::string> joined = {"spec 0of rank 1"};
  EXPECT_FALSE(cache.find(PlanOrigin(joined)).has_value());
  // An entry larger than all the room is not kept, and pushes nothing out.
  const std::vector<std::string> huge = {std::string(PlanCache::kMaxBytes + 1, 'x')};
  cache.remember(PlanOrigin(huge), facts, true);
  EXPECT_FALSE(cache.find(PlanOrigin(huge)).has_value());
  EXPECT_EQ(cache.numKept(), PlanCache::kMaxEntries);
  // Large entries are removed when the bytes exceed the bound.
  for (int i = 0; i < 4; ++i) {
    const std::vector<std::string> large = {std::string(PlanCache::kMaxBytes / 3, static_cast<char>('a' + i))};
    cache.remember(PlanOrigin(large), facts, true);
  }
  EXPECT_LE(cache.numKept(), 3u);
}

TEST(PlanCache, TheThirdEqualCallPlansNothing) {
  for (const WhoPlans who : {WhoPlans::kChosen, WhoPlans::kEachRank, WhoPlans::kRank0}) {
    for (const int n : {1, 3, 17}) {
      withGroup(n, [&](Communicator& group) {
        const From made = who == WhoPlans::kRank0 && group.rank() != 0 ? From::kReceived : From::kPlanned;
        EXPECT_EQ(compile(group, gather(group.rank(), n, 2, who), 2), made);
        EXPECT_EQ(compile(group, gather(group.rank(), n, 3, who), 3), made);
        EXPECT_EQ(compile(group, gather(group.rank(), n, 2, who), 2), made);
        EXPECT_EQ(compile(group, gather(group.rank(), n, 2, who), 2), From::kMemory);
        LocalSpec anew = gather(group.rank(), n, 2, who);
        anew.useCached = false;
        EXPECT_EQ(compile(group, anew, 2), made);
        EXPECT_EQ(compile(group, gather(group.rank(), n, 2, who), 2), From::kMemory);
        EXPECT_EQ(compile(group, gather(group.rank(), n, 3, who), 3), made);
      });
    }
  }
}

TEST(PlanCache, OneRankThatPlansAnewIsGivenItsPlanAndTheOthersKeepTheirs) {
  withGroup(3, [](Communicator& group) {
    LocalSpec spec = gather(group.rank(), 3, 2, WhoPlans::kRank0);
    compile(group, spec, 2);
    compile(group, spec, 2);
    spec.useCached = group.rank() != 2;
    EXPECT_EQ(compile(group, spec, 2), group.rank() == 2 ? From::kReceived : From::kMemory);
    spec.useCached = group.rank() != 0;
    EXPECT_EQ(compile(group, spec, 2), group.rank() == 0 ? From::kPlanned : From::kMemory);
  });
}

// ---- on disk

TEST(KeptPlans, LieInTheirPatternsFolderAndAreFoundByTheNextGroup) {
  for (const int n : {2, 17}) {
    for (const WhoPlans who : {WhoPlans::kEachRank, WhoPlans::kRank0}) {
      const Folder folder;
      for (const bool isFirst : {true, false}) {
        withGroup(n, [&](Communicator& group) {
          const From from = compile(group, gather(group.rank(), n, 2, who, folder.path()), 2);
          EXPECT_EQ(from, !isFirst                                       ? From::kDisk
                          : who == WhoPlans::kRank0 && group.rank() != 0 ? From::kReceived
                                                                         : From::kPlanned);
          EXPECT_EQ(compile(group, gather(group.rank(), n, 2, who, folder.path()), 2), From::kMemory);
        });
      }
      std::set<std::string> folders;
      for (const fs::path& file : folder.files()) {
        folders.insert(fs::relative(file.parent_path(), folder.path()));
      }
      EXPECT_EQ(folder.files().size(), static_cast<std::size_t>(n));
      EXPECT_EQ(folders.size(), who == WhoPlans::kRank0 ? 1u : static_cast<std::size_t>(n));
      EXPECT_TRUE(folders.contains(who == WhoPlans::kRank0 ? "spmd" : "rank_1"));
    }
  }
}

TEST(KeptPlans, OfTheDiskExplainAllWhereAllSpecsAreHere) {
  const Folder folder;
  for (int turn = 0; turn < 2; ++turn) {
    withGroup(2, [&](Communicator& group) {
      auto kept = group.compileOp(gather(group.rank(), 2, 2, WhoPlans::kChosen, folder.path()));
      auto anew = group.compileOp(gather(group.rank(), 2, 2, WhoPlans::kEachRank));
      ASSERT_TRUE(kept.isOk() && anew.isOk());
      EXPECT_EQ((*kept)->planProvenance().from, turn == 0 ? From::kPlanned : From::kDisk);
      EXPECT_EQ((*kept)->explainJson(), (*anew)->explainJson());
      EXPECT_NE((*kept)->explain().find("the least possible: 32 B"), std::string::npos) << (*kept)->explain();
    });
  }
}

TEST(KeptPlans, ARankWithoutItsFileIsGivenItAndTheOthersTakeTheirs) {
  const Folder folder;
  for (const Rank without : {-1, 1, 0, 2}) {
    std::string path;
    withGroup(3, [&](Communicator& group) {
      // The file of rank `without` is removed before the call; the op states the paths.
      auto op = group.compileOp(gather(group.rank(), 3, 2, WhoPlans::kRank0, folder.path()));
      ASSERT_TRUE(op.isOk());
      if (group.rank() == without) {
        path = (*op)->planProvenance().path;
      }
    });
    if (without >= 0) {
      ASSERT_TRUE(fs::remove(path));
      withGroup(3, [&](Communicator& group) {
        const From from = compile(group, gather(group.rank(), 3, 2, WhoPlans::kRank0, folder.path()), 2);
        EXPECT_EQ(from, group.rank() != without ? From::kDisk : without == 0 ? From::kPlanned : From::kReceived);
      });
      EXPECT_TRUE(fs::exists(path));
    }
  }
}

std::string contentsOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST(KeptPlans, AFileThatIsNotOursOrNotWholeIsAMissAndIsReplaced) {
  const std::vector<std::pair<std::string, std::function<void(const fs::path&, const fs::path&)>>> faults = {
      {"empty", [](const fs::path& path, const fs::path&) { put(path, ""); }},
      {"foreign", [](const fs::path& path, const fs::path&) { put(path, std::string(5000, 'P')); }},
      {"cut", [](const fs::path& path,
                 const fs::path&) { put(path, contentsOf(path).substr(0, contentsOf(path).size() - 33)); }},
      {"longer", [](const fs::path& path, const fs::path&) { put(path, contentsOf(path) + "x"); }},
      {"sparse, and larger than all memory",
       [](const fs::path& path, const fs::path&) { fs::resize_file(path, std::uintmax_t{1} << 40); }},
      {"one bit",
       [](const fs::path& path, const fs::path&) {
         std::string bytes = contentsOf(path);
         bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 2);
         put(path, bytes);
       }},
      {"another schema",
       [](const fs::path& path, const fs::path&) {
         std::string bytes = contentsOf(path);
         ++bytes[4];
         put(path, bytes);
       }},
      {"another plan", [](const fs::path& path, const fs::path& other) { put(path, contentsOf(other)); }},
      {"others may write", [](const fs::path& path, const fs::path&) { fs::permissions(path, fs::perms(0666)); }},
      {"a pipe",
       [](const fs::path& path, const fs::path&) {
         fs::remove(path);
         ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
       }},
      {"a dangling link",
       [](const fs::path& path, const fs::path&) {
         fs::remove(path);
         fs::create_symlink("nowhere", path);
       }},
  };
  for (const auto& [name, spoil] : faults) {
    SCOPED_TRACE(name);
    for (const WhoPlans who : {WhoPlans::kEachRank, WhoPlans::kRank0}) {
      const Folder folder;
      std::vector<std::string> paths(2);
      std::string other;
      withGroup(2, [&](Communicator& group) {
        auto op = group.compileOp(gather(group.rank(), 2, 2, who, folder.path()));
        auto second = group.compileOp(gather(group.rank(), 2, 3, who, folder.path()));
        ASSERT_TRUE(op.isOk() && second.isOk());
        paths[static_cast<std::size_t>(group.rank())] = (*op)->planProvenance().path;
        if (group.rank() == 1) {
          other = (*second)->planProvenance().path;
        }
      });
      spoil(paths[1], other);
      const From made = who == WhoPlans::kRank0 ? From::kReceived : From::kPlanned;
      for (const From expected : {made, From::kDisk}) {
        withGroup(2, [&](Communicator& group) {
          EXPECT_EQ(compile(group, gather(group.rank(), 2, 2, who, folder.path()), 2),
                    group.rank() == 1 ? expected : From::kDisk);
        });
      }
    }
  }
}

TEST(KeptPlans, AFolderThatCannotBeWrittenIsReportedAndNotFatal) {
  const Folder folder;
  const std::string file = folder.path() + "/file";
  put(file, "");
  for (const WhoPlans who : {WhoPlans::kChosen, WhoPlans::kRank0}) {
    for (const std::string& place : {file + "/plans", std::string("/proc/shardwire")}) {
      withGroup(2, [&](Communicator& group) {
        std::string why;
        compile(group, gather(group.rank(), 2, 2, who, group.rank() == 1 ? place : folder.path()), 2, &why);
        EXPECT_EQ(why.empty(), group.rank() == 0) << why;
      });
    }
  }
}

TEST(KeptPlans, OfOtherSpecsOrPatternsOrGroupsAreOthers) {
  const Folder folder;
  const auto keep = [&](int n, std::int64_t rows, WhoPlans who) {
    withGroup(n, [&](Communicator& group) {
      LocalSpec spec = gather(group.rank(), n, rows, who, folder.path());
      EXPECT_NE(compile(group, spec, rows), From::kDisk);
    });
    return folder.files().size();
  };
  EXPECT_EQ(keep(2, 2, WhoPlans::kEachRank), 2u);
  EXPECT_EQ(keep(2, 2, WhoPlans::kRank0), 4u);
  EXPECT_EQ(keep(2, 3, WhoPlans::kRank0), 6u);
  EXPECT_EQ(keep(3, 2, WhoPlans::kRank0), 9u);
}

TEST(KeptPlans, TheKeyHoldsAllThatTheDocumentNames) {
  const std::vector<std::int32_t> oneHost = {0, 0};
  const std::vector<std::int32_t> twoHosts = {0, 1};
  const PlanPlace place{
      .mode = "spmd", .rank = 0, .worldSize = 2, .hosts = oneHost, .members = {0, 1}, .transports = ""};
  std::set<std::string> paths = {PlanFile("/b", place).path()};
  const auto expectOther = [&](const std::function<void(PlanPlace&)>& change) {
    PlanPlace other = place;
    change(other);
    EXPECT_TRUE(paths.insert(PlanFile("/b", other).path()).second);
  };
  expectOther([](PlanPlace& other) { other.mode = "local"; });
  expectOther([](PlanPlace& other) { other.rank = 1; });
  expectOther([](PlanPlace& other) { other.worldSize = 1; });
  expectOther([](PlanPlace& other) { other.specs[31] = 1; });
  expectOther([&](PlanPlace& other) { other.hosts = twoHosts; });
  expectOther([](PlanPlace& other) { other.members = {1, 0}; });
  expectOther([](PlanPlace& other) { other.transports = "tcp"; });
  EXPECT_EQ(PlanFile("/b", place).path(), *paths.find(PlanFile("/b", place).path()));
}

TEST(KeptPlans, WithoutAGroupRefuseHostsOfSomeRanks) {
  const Folder folder;
  std::vector<LocalSpec> specs;
  for (Rank rank = 0; rank < 3; ++rank) {
    specs.push_back(gather(rank, 3, 2, WhoPlans::kChosen, folder.path()));
  }
  const std::vector<std::int32_t> hosts = {0, 1};
  const Status kept = planOffline(specs, 1, hosts).status();
  EXPECT_EQ(kept.code(), StatusCode::kInvalidArgument) << kept.message();
  EXPECT_TRUE(folder.files().empty());
  for (LocalSpec& spec : specs) {
    spec.buildDir.clear();
  }
  EXPECT_EQ(planOffline(specs, 1, hosts).status(), kept);
}

TEST(ExplainJson, HasNoBytesThatAreNotUtf8) {
  std::vector<LocalSpec> specs = {gather(0, 1, 2, WhoPlans::kChosen)};
  specs[0].name = "op \xff";
  specs[0].tensors[0].name = "tensor \xff";
  const auto op = planOffline(specs, 0);
  ASSERT_TRUE(op.isOk()) << op.status().message();
  const std::string json = (*op)->explainJson();
  EXPECT_NE(json.find("\"op \xef\xbf\xbd\""), std::string::npos) << json;
  EXPECT_NE(json.find("\"tensor \xef\xbf\xbd\""), std::string::npos) << json;
}

TEST(KeptPlans, WithoutAGroupLieInLocalOrTheRanksFolder) {
  const Folder folder;
  std::vector<LocalSpec> specs;
  for (Rank rank = 0; rank < 3; ++rank) {
    specs.push_back(gather(rank, 3, 2, WhoPlans::kChosen, folder.path()));
  }
  const std::string alone = (*planOffline(specs, 1))->planBytes();
  auto again = planOffline(specs, 1);
  EXPECT_EQ((*again)->planProvenance().from, From::kDisk);
  EXPECT_EQ((*again)->planBytes(), alone);
  EXPECT_NE((*again)->explain().find("the least possible"), std::string::npos);
  EXPECT_EQ((*planOffline(specs, 2))->planProvenance().from, From::kPlanned);
  for (LocalSpec& spec : specs) {
    spec.whoPlans = WhoPlans::kEachRank;
  }
  auto ofRank = planOffline(specs, 1);
  EXPECT_EQ((*ofRank)->planProvenance().from, From::kPlanned);
  EXPECT_TRUE((*ofRank)->planProvenance().path.starts_with(folder.path() + "/rank_1/"));
  specs[1].useCached = false;
  EXPECT_EQ((*planOffline(specs, 1))->planProvenance().from, From::kPlanned);
  specs[0].inputs.clear();
  EXPECT_EQ(planOffline(specs, 1).status().code(), StatusCode::kGap);
}

// Counts that depend on data are new in each call.
TEST(ProgramCache, HasABoundInBytes) {
  constexpr std::size_t kWorldSize = 256;
  ProgramCache cache(0, {.topology = {.worldSize = kWorldSize}, .frameBytes = 4096});
  std::vector<std::int64_t> elems(kWorldSize, 1);
  const std::vector<TensorView> views(kWorldSize, TensorView::contiguous(nullptr, DType::kUInt8, {1}));
  std::size_t most = 0;
  for (elems[1] = 1; elems[1] <= 150; ++elems[1]) {
    const CollectiveCall call{
        .kind = Collective::kAllToAll, .dtype = DType::kUInt8, .inputElems = elems, .outputElems = elems};
    for (int repeat = 0; repeat < 2; ++repeat) {
      Runs runs;
      EXPECT_TRUE(cache.prepare(call, views, views, &runs).isOk());
      std::ranges::for_each(runs.span(), [](const auto& run) { run->abandon(); });
    }
    most = std::max(most, cache.keptBytes());
  }
  EXPECT_LE(most, ProgramCache::kMaxBytes);
  EXPECT_GT(most, ProgramCache::kMaxBytes / 2);
}

}  // namespace
}  // namespace shardwire::internal
