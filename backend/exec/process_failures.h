// The groups of this process that failed because a rank died or left. A process that failed in one group often comes to
// no other group any more; the peers of the other groups are notified of the reason (Questions::sendAdvice).
// Process-wide by nature: a process is the owner of one progress bell. Only simulated ranks have several processes in
// one (tests/simulate). Thread-safe; calls `changed` under no lock of this file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shardwire::internal {

// Identifies a group by a unique address, and the group's process by the address of the process's progress bell.
struct ProcessGroup {
  const void* process = nullptr;
  const void* group = nullptr;

  bool operator==(const ProcessGroup&) const = default;
};

// `changed` is called, on any thread, when another group of the process failed; the function must not wait.
void addProcessGroup(const ProcessGroup& group, std::function<void()> changed);
// The group was shut down; the process has got over the group's failure, if there was a failure.
void removeProcessGroup(const ProcessGroup& group);
void addProcessFailure(const ProcessGroup& group, std::string text);
// Changes with each of the above: cheap to ask again and again.
std::uint64_t processFailuresVersion();
// The oldest failure in another group of the process since this group was added; empty when there is no failure. A
// process that makes a group after a failure has got over the failure. `evenOver`: includes groups shut down in the
// last minute, as when a process ends because of the failures.
std::string processFailureBeside(const ProcessGroup& group, bool evenOver = false);
// Nothing is known, as in a new process. Only for simulations, which follow each other in one process; no group may be
// left.
void forgetProcessFailures();

}  // namespace shardwire::internal
