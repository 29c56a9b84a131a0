// Plans of one group that were made before, for the next compileOp of the same specs: in memory, with a bound. What is asked for once is
// not kept, only its hash, so that operations that are compiled once pay nothing for it. Any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/base/mutex.h"
#include "backend/op_facts.h"

namespace shardwire::internal {

// What a plan was made from: all ranks' encoded specs, or a digest of them where this rank has not got them. A view.
class PlanOrigin {
 public:
  explicit PlanOrigin(std::span<const std::string> specs);
  std::uint64_t hash() const { return hash_; }
  std::span<const std::string> specs() const { return specs_; }

 private:
  std::span<const std::string> specs_;
  std::uint64_t hash_;
};

class PlanCache {
 public:
  static constexpr std::size_t kMaxEntries = 64;
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  // The op, as it was for another number of the group.
  std::optional<OpFacts> find(const PlanOrigin& origin);
  // Replaces what was kept. isSure: also when it was not asked for before. The least recently used ones make room.
  void remember(const PlanOrigin& origin, const OpFacts& facts, bool isSure);
  std::size_t numKept() const;

 private:
  struct Kept {
    std::uint64_t hash;
    std::vector<std::string> specs;
    OpFacts facts;
    std::size_t bytes;
  };
  std::list<Kept>::iterator placeOf(const PlanOrigin& origin) SW_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::list<Kept> kept_ SW_GUARDED_BY(mutex_);  // the most recently used one in front
  std::size_t bytes_ SW_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, kMaxEntries> asked_ SW_GUARDED_BY(mutex_){};  // a ring of hashes that are not kept
  std::size_t nextAsked_ SW_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwire::internal
