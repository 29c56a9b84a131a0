// Rank 0 makes what every rank needs and sends each its own: how plans are shipped. Blocking, collective; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backend/exec/engine.h"

namespace shardwire::internal {

// makeRow: called on rank 0 only, once for each rank, not under any lock. takeRow: called on every rank with its own row. What either of
// them cannot do is one and the same error on all ranks: that of the lowest rank that has one. So are exceptions. `begun`: the part of the
// user's call that came before. `what` is for messages:
// "compile_op "x"". Errors of the group: kTimeout, which leaves it usable, and what fails it.
Status shipRows(Engine& engine, const CallPart& begun, const std::string& what, std::optional<Duration> timeout,
                const std::function<Result<std::string>(Rank)>& makeRow, const std::function<Status(std::string_view)>& takeRow);

}  // namespace shardwire::internal
