// A store that several attempts of a job use, one after another. The agent of an elastic launcher (torchrun
// --max-restarts) restarts all ranks, perhaps with another number of ranks, and keeps the store. So the store still has
// the addresses of dead processes, and their failures. The launcher's count of restarts cannot name an attempt, since
// the agents of several hosts count differently. So rank 0's process names the attempt: rank 0 writes the random id of
// its process, and the ranks of the attempt use keys with that id, which no earlier attempt used. A rank that reads the
// id too early may read an earlier attempt's. The rank is sure of the id if rank 0 wrote the id after this process
// began (all processes of an attempt have ended before processes of the next begin), or if rank 0's roster has the
// address of this rank. Until then the rank checks whether the id has changed, begins again if so, and relies on no
// other entry, except a failure that rank 0 wrote for this process (FailureBoard).
#pragma once

#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/store.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct Attempt {
  RandomId process;  // the id of rank 0's process; zero: the store serves one attempt only
  bool isSure = true;
};

// Rank 0 names the attempt; the other ranks wait for the name.
Result<Attempt> findAttempt(Store& store, Rank rank, Deadline deadline);
// Whether the store names another attempt now. Asks the store.
bool isOutdated(Store& store, const Attempt& attempt);

// The store with the keys of one attempt.
class AttemptStore final : public Store {
 public:
  AttemptStore(Store& store, const Attempt& attempt);
  Status set(const std::string& key, std::string_view value) override { return store_.set(key + suffix_, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    return store_.get(key + suffix_, deadline);
  }

 private:
  Store& store_;
  std::string suffix_;
};

}  // namespace shardwire::internal
