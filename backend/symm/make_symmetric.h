// Makes a symmetric block: every rank of the group calls it. Blocking; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "backend/symm/symmetric_block.h"

namespace shardwire::internal {

// `joinAll` joins this rank to all other ranks if some are not joined yet; all ranks call `joinAll` at once. Errors are
// the same on all ranks: kInvalidArgument with a rank's localError, kMismatch where the ranks ask for different blocks,
// kSystem where a rank has no memory, kUnsupported as the request says.
Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const std::shared_ptr<Engine>& engine,
                                                       const SymmetricRequest& request, std::optional<Duration> timeout,
                                                       const std::function<Status()>& joinAll);

}  // namespace shardwire::internal
