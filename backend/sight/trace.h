// The flight recorders of this process in the form of torch's own (torch.distributed.flight_recorder, version 2.10), which its tool
// torchfrtrace reads. Any thread; nothing here takes an engine's lock.
#pragma once

#include <memory>
#include <string>

namespace shardwire::internal {

class Engine;

// All groups of this process that are alive. `onlyActive`: without operations that are over.
std::string traceAsJson(bool onlyActive = false);
// When the group fails, its rank's trace is written to Options::recordFile, if there is one.
void watch(const std::shared_ptr<Engine>& engine);

}  // namespace shardwire::internal
