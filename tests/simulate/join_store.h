// The store of a simulated job: answers come late, or never come, and the store may end.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "shardwire/store.h"
#include "tests/simulate/process.h"

namespace shardwire::simulate {

// The entries, and the faults.
struct StoreServer {
  std::map<std::string, std::string> entries;
  bool hasEnded = false;
  Time longestDelay = 0;
  std::map<Rank, int> numAnswered;  // by process: later requests get no answer; absent: all are answered
};

// The store as one process uses it for one group, until `deadline`: after this the store is not waited for (as in
// c10d's adapter).
class SimulatedStore final : public Store {
 public:
  SimulatedStore(StoreServer& server, Process& process, std::string prefix, Time deadline)
      : server_(server), process_(process), prefix_(std::move(prefix)), deadline_(deadline) {}
  Status set(const std::string& key, std::string_view value) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  // The request reaches the store.
  Status reach(const std::string& what);
  void delay();

  StoreServer& server_;
  Process& process_;
  const std::string prefix_;
  const Time deadline_;
  bool isSilent_ = false;
};

}  // namespace shardwire::simulate
