// The state of this process in all its groups, as the JSON that `python -m shardwire.status` reads. Any thread. Waits
// for an engine's lock for `patience` at most, and for nothing else.
#pragma once

#include <string>

#include "shardwire/export.h"
#include "shardwire/types.h"

namespace shardwire::internal {

inline constexpr Duration kStatusPatience = std::chrono::milliseconds(100);

SHARDWIRE_EXPORT std::string statusAsJson(Duration patience = kStatusPatience);

}  // namespace shardwire::internal
