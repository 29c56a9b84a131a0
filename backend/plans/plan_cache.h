// Plans that one group has made, for the next compileOp of the same specs: in memory, with a bound. The first request
// for a plan stores only a hash, so operations compiled once cost nothing. Any thread.
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
#include "backend/plans/op_facts.h"

namespace shardwire::internal {

// The origin of a plan: all ranks' encoded specs, or a digest of the specs on a rank without the specs. A view.
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

  // The op, with the number of the earlier compilation.
  std::optional<OpFacts> find(const PlanOrigin& origin);
  // Replaces an earlier entry. isSure: stores the op also at the first request. The least recently used entries make
  // room.
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
  std::list<Kept> kept_ SW_GUARDED_BY(mutex_);  // the most recently used entry in front
  std::size_t bytes_ SW_GUARDED_BY(mutex_) = 0;
  std::array<std::uint64_t, kMaxEntries> asked_ SW_GUARDED_BY(mutex_){};  // a ring of the hashes of first requests
  std::size_t nextAsked_ SW_GUARDED_BY(mutex_) = 0;
};

}  // namespace shardwire::internal
