// Makes a symmetric block: every rank of the group calls it. Blocking; any thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "backend/symm/symmetric_block.h"

namespace shardwire::internal {

// The kinds of the two exchanges (exchangeAll). A rank that gave up in the first may begin anew while its peers are in
// the second: the error on all ranks then says which rank is in which exchange.
inline constexpr const char* kOffersSymmetric = "symmetric memory (1 of 2: what each rank wants)";
inline constexpr const char* kSettlesSymmetric = "symmetric memory (2 of 2: whether each rank has it)";

// `joinAll` joins this rank to all other ranks if some are not joined yet; all ranks call `joinAll` at once. Errors are
// the same on all ranks: kInvalidArgument with a rank's localError or where a rank's heap has no room, kMismatch where
// the ranks ask for different blocks, kSystem where a rank cannot map a part, kUnsupported as the request says.
Result<std::shared_ptr<SymmetricMemory>> makeSymmetric(const std::shared_ptr<Engine>& engine,
                                                       const SymmetricRequest& request, std::optional<Duration> timeout,
                                                       const std::function<Status()>& joinAll);

}  // namespace shardwire::internal
