// A store that serves one group after another. A job may end its default group and make it anew, and torchrun's agent keeps the store
// meanwhile: the first group's addresses are still there, and a rank that is early would take its peers' old ones for new. So each further
// group of a store is a round with keys of its own. A rank knows the round by itself: it is the first in which it has not written an
// address. Ranks whose processes are not those of the round before do not meet the others.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/status.h"
#include "shardwire/store.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The store as a round sees it. Round 0 has the keys as they are.
class RoundStore final : public Store {
 public:
  RoundStore(Store& store, int round) : store_(store), round_(round) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(keyOf(key), value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override { return store_.get(keyOf(key), deadline); }

 private:
  std::string keyOf(const std::string& key) const;

  Store& store_;
  int round_;
};

// The round in which this process's next group of this store is. It asks the store only if a group of this process ended before (or was
// not made): others, such as torch's new_group, have stores of their own, and should not wait for the answer.
Result<int> nextRound(Store& store, Rank rank);

// A group of this process is no more, or was not made. Any thread.
void noteEndOfGroup();

}  // namespace shardwire::internal
