#include "backend/plans/plan_cache.h"

#include <algorithm>

#include "ops/plan/hash.h"

namespace shardwire::internal {
namespace {

std::uint64_t hashOfSpecs(std::span<const std::string> specs) {
  Hasher hasher;
  for (const std::string& spec : specs) {
    hasher.add(spec);
  }
  return hasher.value();
}

}  // namespace

PlanOrigin::PlanOrigin(std::span<const std::string> specs) : specs_(specs), hash_(hashOfSpecs(specs)) {}

std::list<PlanCache::Kept>::iterator PlanCache::placeOf(const PlanOrigin& origin) {
  return std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.hash == origin.hash() &&
           std::equal(kept.specs.begin(), kept.specs.end(), origin.specs().begin(), origin.specs().end());
  });
}

std::optional<OpFacts> PlanCache::find(const PlanOrigin& origin) {
  const MutexLock lock(mutex_);
  const auto found = placeOf(origin);
  if (found == kept_.end()) {
    return std::nullopt;
  }
  kept_.splice(kept_.begin(), kept_, found);
  return found->facts;
}

void PlanCache::remember(const PlanOrigin& origin, const OpFacts& facts, bool isSure) {
  const MutexLock lock(mutex_);
  const auto old = placeOf(origin);
  if (old != kept_.end()) {
    bytes_ -= old->bytes;
    kept_.erase(old);
  } else if (!isSure && std::find(asked_.begin(), asked_.end(), origin.hash()) == asked_.end()) {
    asked_[nextAsked_++ % asked_.size()] = origin.hash();
    return;
  }
  std::size_t bytes = facts.stats().planBytes;
  for (const std::string& spec : origin.specs()) {
    bytes += sizeof(std::string) + spec.size();
  }
  if (bytes > kMaxBytes) {
    return;
  }
  kept_.push_front({origin.hash(), {origin.specs().begin(), origin.specs().end()}, facts, bytes});
  bytes_ += bytes;
  while (kept_.size() > kMaxEntries || bytes_ > kMaxBytes) {
    bytes_ -= kept_.back().bytes;
    kept_.pop_back();
  }
}

std::size_t PlanCache::numKept() const {
  const MutexLock lock(mutex_);
  return kept_.size();
}

}  // namespace shardwire::internal
