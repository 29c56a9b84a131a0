// A store that serves one group after another. A job may end its default group and make a new one, and torchrun's agent
// keeps the store meanwhile. The first group's addresses are still in the store, and an early rank would mistake old
// addresses of peers for new addresses. So each further group of a store is a round with separate keys. A rank finds
// the round alone: the first round in which the rank has not written an address. Ranks of processes that took no part
// in the round before do not meet the other ranks.
#pragma once

#include <string>
#include <string_view>

#include "shardwire/status.h"
#include "shardwire/store.h"
#include "shardwire/types.h"

namespace shardwire::internal {

// The store with the keys of one round. Round 0 has unchanged keys.
class RoundStore final : public Store {
 public:
  RoundStore(Store& store, int round) : store_(store), round_(round) {}
  Status set(const std::string& key, std::string_view value) override { return store_.set(keyOf(key), value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    return store_.get(keyOf(key), deadline);
  }

 private:
  std::string keyOf(const std::string& key) const;

  Store& store_;
  int round_;
};

// The round of this process's next group of this store. Asks the store only if a group of this process ended before (or
// was not made): other stores, such as the store of torch's new_group, serve one group only, and the users of these
// stores should not wait for the answer.
Result<int> nextRound(Store& store, Rank rank);

// A group of this process has ended, or was not made. Any thread.
void noteEndOfGroup();

}  // namespace shardwire::internal
