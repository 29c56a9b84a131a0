// The flight recorders of this process in the form of torch's recorder (torch.distributed.flight_recorder, version
// 2.10), for torch's tool torchfrtrace. Any thread; takes no engine's lock.
#pragma once

#include <memory>
#include <string>

#include "shardwire/export.h"

namespace shardwire::internal {

class Engine;

// All live groups of this process. `onlyActive`: without finished operations.
SHARDWIRE_EXPORT std::string traceAsJson(bool onlyActive = false);
// When the group fails, the trace of the group's rank is written to Options::recordFile, if set.
void watch(const std::shared_ptr<Engine>& engine);

}  // namespace shardwire::internal
