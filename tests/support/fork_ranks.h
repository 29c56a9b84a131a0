// Runs a function once for each rank of a test, as threads or as forked processes, under a time limit: a hang is a
// failure, with a text. Call on the main thread of the test. Failed expectations, exceptions and unexpected deaths of
// ranks fail the running test.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <set>

#include "shardwire/types.h"

namespace shardwire::testing {

using RankFunction = std::function<void(Rank)>;
inline constexpr std::chrono::seconds kRankTimeLimit{60};

// A thread cannot be ended from outside: after the time limit the whole test program ends with an error.
void runRanksAsThreads(int numRanks, const RankFunction& function, Duration limit = kRankTimeLimit);

// Each rank is a separate child; children alive after the limit are killed. `mayDie`: ranks whose death by SIGKILL
// is part of the test; any other signal is a failure. Results of a child stay in the child: check them there, or hand
// them over in memory mapped before.
void runRanksAsProcesses(int numRanks, const RankFunction& function, Duration limit = kRankTimeLimit,
                         const std::set<Rank>& mayDie = {});

// Whether this kernel has process_vm_readv; qemu-user has not. A test that forces such reads between processes is
// skipped without.
bool hasCrossMemoryReads();

// Returns when SIGSTOP has reached every thread of the process: until then a thread of the process may still answer.
void awaitStopped(pid_t process);

}  // namespace shardwire::testing
