// Rank 0 makes a row of bytes for every rank and sends each rank its row: used for shipping plans. Blocking,
// collective; any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "backend/exec/engine.h"

namespace shardwire::internal {

// makeRow: called on rank 0 only, once for each rank, not under any lock. takeRow: called on every rank with the rank's
// own row. An error or exception in either function is the same error on all ranks: the error of the lowest failing
// rank. `begun`: the earlier part of the user's call. `what` is for messages: "compile_op "x"". Errors of the group:
// kTimeout, which leaves the group usable, and failures of the group.
Status shipRows(Engine& engine, const CallPart& begun, const std::string& what, std::optional<Duration> timeout,
                const std::function<Result<std::string>(Rank)>& makeRow,
                const std::function<Status(std::string_view)>& takeRow);

}  // namespace shardwire::internal
