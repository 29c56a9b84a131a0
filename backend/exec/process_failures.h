// The groups of this process that failed because a rank died or left. A process that failed in one group often comes to
// no other group any more; the peers of the other groups are notified of the reason (Questions::sendAdvice).
// Process-wide by nature. Thread-safe; calls `changed` under no lock of this file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shardwire::internal {

// `group` identifies a group by a unique address. `changed` is called, on any thread, when another group failed; the
// function must not wait.
void addProcessGroup(const void* group, std::function<void()> changed);
// The group was shut down; the process has got over the group's failure, if there was a failure.
void removeProcessGroup(const void* group);
void addProcessFailure(const void* group, std::string text);
// Changes with each of the above: cheap to ask again and again.
std::uint64_t processFailuresVersion();
// The oldest failure in a group other than `group`; empty when there is no failure. `evenOver`: includes groups shut
// down in the last ten seconds, as when a process ends because of the failures.
std::string processFailureBeside(const void* group, bool evenOver = false);

}  // namespace shardwire::internal
