// The live engines of this process, oldest first: for code that examines all groups of the process. Any thread.
#pragma once

#include <memory>
#include <vector>

namespace shardwire::internal {

class Engine;

void addProcessEngine(const std::shared_ptr<Engine>& engine);
std::vector<std::shared_ptr<Engine>> processEngines();

}  // namespace shardwire::internal
