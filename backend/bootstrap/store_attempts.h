// A store that one attempt of a job after another uses. The agent of an elastic launcher (torchrun --max-restarts) starts all ranks anew,
// perhaps another number of them, and keeps the store: addresses of processes that are dead, and why they failed, are still there. The
// launcher's count of restarts is no name of an attempt, since the agents of several hosts count differently. So rank 0's process names the
// attempt: it writes its id, and the ranks of the attempt use keys with that id, under which nobody wrote before. A rank that reads the id
// may be early and read an earlier attempt's. It is sure when rank 0 wrote the id after this process began (all processes of an attempt
// have ended before those of the next begin), or when rank 0's roster has the address of this rank. Until then the rank looks whether the
// id has changed, begins again when it has, and believes nothing else.
#pragma once

#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "shardwire/status.h"
#include "shardwire/store.h"
#include "shardwire/types.h"

namespace shardwire::internal {

struct Attempt {
  RandomId process;  // rank 0's; zero: the store is of one attempt only
  bool isSure = true;
};

// Rank 0 names the attempt; the others wait until one is named.
Result<Attempt> findAttempt(Store& store, Rank rank, Deadline deadline);
// Whether another attempt is named there now. Asks the store.
bool isOutdated(Store& store, const Attempt& attempt);

// The store as an attempt sees it.
class AttemptStore final : public Store {
 public:
  AttemptStore(Store& store, const Attempt& attempt);
  Status set(const std::string& key, std::string_view value) override { return store_.set(key + suffix_, value); }
  Result<std::string> get(const std::string& key, Deadline deadline) override { return store_.get(key + suffix_, deadline); }

 private:
  Store& store_;
  std::string suffix_;
};

}  // namespace shardwire::internal
