// One rank's plan on disk: the path, and the contents required of a valid file. Any defect of a file counts as a miss.
// Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/base/digest.h"
#include "ops/plan/plan_row.h"

namespace shardwire::internal {

// The circumstances for which a plan is made. Two plans with equal places have the same bytes.
struct PlanPlace {
  std::string mode;  // "spmd", "rank_3" or "local": the folder under buildDir
  Rank rank = 0;
  int worldSize = 1;
  Digest specs{};                     // of all ranks' encoded specs
  HostMap hosts;                      // empty: all ranks on one host
  std::vector<std::int64_t> members;  // the job's rank of each member; empty: without a group
  std::string transports;             // Options::transports
};

class PlanFile {
 public:
  PlanFile(const std::string& buildDir, const PlanPlace& place);

  std::string path() const;
  // The plan for the spec asked by this rank; nothing if there is no file, or the file is damaged, foreign or of
  // another key.
  std::optional<PlanRow> read(const LocalSpec& asked) const;
  Status write(const PlanRow& row) const;
  bool isThere() const;

 private:
  const std::string folder_;
  const std::string key_;
  const Rank rank_;
  const int worldSize_;
  const std::uint64_t hostsHash_;
};

}  // namespace shardwire::internal
