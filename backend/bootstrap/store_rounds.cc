#include "backend/bootstrap/store_rounds.h"

#include <fmt/format.h>

#include <atomic>

#include "backend/base/per_process.h"
#include "backend/base/random_id.h"
#include "backend/bootstrap/address.h"

namespace shardwire::internal {
namespace {

struct Ended {
  std::atomic<bool> any{false};  // group of this process
};

constexpr const char* kAnyKey = "shardwire/again";

// Whether this process has published an address in the round.
Result<bool> hasPublished(Store& store, Rank rank, int round, const RandomId& self) {
  // With a deadline in the past, get() looks once.
  const auto bytes = RoundStore(store, round).get(addressKey(rank), Clock::now());
  if (!bytes.isOk()) {
    return bytes.status().code() == StatusCode::kTimeout ? Result<bool>(false) : bytes.status();
  }
  const auto address = decodeAddress(*bytes);
  return address.isOk() && address->process == self;
}

}  // namespace

std::string RoundStore::keyOf(const std::string& key) const {
  return round_ == 0 ? key : fmt::format("{}/round {}", key, round_);
}

// Many rounds need few requests: the steps grow while rounds are used, and begin at one again after the first unused
// round.
Result<int> nextRound(Store& store, Rank rank) {
  if (!PerProcess<Ended>::get().any.load()) {
    return 0;
  }
  const auto self = processId();
  SW_RETURN_IF_ERROR(self.status());
  SW_RETURN_IF_ERROR(store.set(kAnyKey, ""));  // a look at torch's FileStore waits until some process has made the file
  int next = 0;
  int step = 1;
  while (true) {
    const auto isUsed = hasPublished(store, rank, next + step - 1, *self);
    SW_RETURN_IF_ERROR(isUsed.status());
    if (*isUsed) {
      next += step;
      step *= 2;
    } else if (step == 1) {
      return next;
    } else {
      step = 1;
    }
  }
}

void noteEndOfGroup() {
  PerProcess<Ended>::get().any.store(true);
}

}  // namespace shardwire::internal
