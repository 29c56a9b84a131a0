// Plans of one rank, made without a group: to be looked at, kept as bytes, and given a group later
// (Communicator::attach). Pure; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shardwire/compiled_op.h"
#include "shardwire/export.h"

namespace shardwire {

// The op that compileOp would make on `rank` of a group of specs.size() ranks, where rank r gives specs[r]. hosts: the
// number of each rank's host; empty: all ranks on one host. The op describes itself; run() and bind() are kUnsupported.
// Errors: the errors that compileOp returns on all ranks. specs[rank].buildDir: the folder on disk for the plan.
SHARDWIRE_EXPORT Result<std::shared_ptr<CompiledOp>> planOffline(std::span<const LocalSpec> specs, Rank rank,
                                                                 std::span<const std::int32_t> hosts = {});

// The op whose planBytes() are `bytes`. The op has only this rank's part. kInvalidArgument for all other bytes.
SHARDWIRE_EXPORT Result<std::shared_ptr<CompiledOp>> readPlan(std::string_view bytes);

}  // namespace shardwire
