// Which groups of this process failed because a rank died or left. A process that failed in one group often comes to no other any more; the
// peers of its other groups are told why (Questions::sendAdvice). Process-wide by nature. Thread-safe; calls `changed` under no lock of its
// own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace shardwire::internal {

// `group` names a group, by an address of its own. `changed` is called, on any thread, when another group failed; it must not wait.
void addProcessGroup(const void* group, std::function<void()> changed);
// The group was shut down; the process has got over its failure, if there was one.
void removeProcessGroup(const void* group);
void addProcessFailure(const void* group, std::string text);
// Changes with each of the above: cheap to ask again and again.
std::uint64_t processFailuresVersion();
// The oldest failure in a group other than `group`; empty when there is none. `evenOver`: those count, too, whose group was shut down in
// the last ten seconds, as when a process ends because of them.
std::string processFailureBeside(const void* group, bool evenOver = false);

}  // namespace shardwire::internal
