// Publish and subscribe between two simulated jobs, in the steps of python/shardwire/weights/fetching.py: a request,
// the answers of the publishers, the movement of the weights, and the versions of the moved weights. Each step is a
// compiled op of the group of both jobs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwire/communicator.h"
#include "shardwire/compiled_op.h"
#include "tests/simulate/join_schedule.h"
#include "tests/simulate/process.h"

namespace shardwire::simulate {

using Weights = std::vector<std::int64_t>;

// In place of weights that were compared, or whose fetch failed.
inline constexpr std::int64_t kOverwrittenWeight = 0x5c5c5c5c5c5c5c5c;

// A part of a tensor with one dimension.
struct FlatPart {
  std::int64_t offset = 0;
  std::int64_t size = 0;
};

// The copies of one publishing process. Two threads of the process use them in turns.
class Publication {
 public:
  struct Copy {
    std::int64_t version = -1;
    bool isRead = false;  // by a fetch
    Weights weights{};
  };
  // Without weights in a process that does not publish.
  Publication(const JoinSchedule& schedule, Rank process);
  // Copies the weights of this version in place of the oldest version. A reader of the oldest version delays the
  // commit, and after a time the commit is left out.
  void commit(Process& process, std::int64_t version);
  // No version follows.
  void end() { isOver_ = true; }

  // ---- for the fetches
  // The versions, and whether the publication is over. All copies are held until release().
  Weights hold();
  // Only the copy of this version is held any more; -1: none.
  void release(std::int64_t version);
  Copy& find(std::int64_t version) { return *std::ranges::find(copies_, version, &Copy::version); }

 private:
  std::array<Copy, 2> copies_{};
  const FlatPart part_;
  bool isOver_ = false;
};

// The fetches of one rank of either job.
class Subscription {
 public:
  Subscription(Communicator& group, const JoinSchedule& schedule, Rank rank, Process& process,
               Publication& publication);
  // Until all versions are fetched, or the publishers are over. `idle` is called before each fetch.
  Status fetchAll(const std::function<void(int)>& idle);
  // "" or the first wrong bytes.
  const std::string& wrong() const { return wrong_; }
  // Versions whose bytes were compared.
  int numFetched() const { return numFetched_; }
  // Overwritten. Nobody may write them any more.
  Weights takeWeights() { return std::move(weights_); }

 private:
  using Op = std::shared_ptr<CompiledOp>;
  struct Ops {
    Op request;
    Op answer;
    Op move;
    Op done;
  };

  Result<Op> compile(std::int64_t size, const FlatPart& given, const FlatPart& wanted);
  Status compileAll(Ops* ops);
  Status fetchAll(const Ops& ops, const std::function<void(int)>& idle);
  // *version: the newest after `since` that all publishers have; -1: the publishers are over.
  Status choose(const Ops& ops, std::int64_t since, std::int64_t* version);
  Status fetch(const Ops& ops, std::int64_t version);
  void check(std::int64_t version, const Weights& served);

  Communicator& group_;
  const JoinSchedule& drawn_;
  const Rank rank_;
  const Rank numPublishers_;
  const bool isPublisher_;
  Process& process_;
  Publication& publication_;
  const FlatPart part_;  // given or wanted
  Weights weights_;      // of a subscriber
  std::string wrong_;
  int numFetched_ = 0;
};

}  // namespace shardwire::simulate
