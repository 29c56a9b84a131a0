// Plans of one rank, made without a group: to be looked at, kept as bytes, and given a group later (Communicator::attach). Pure; any
// thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "shardwire/compiled_op.h"

namespace shardwire {

// What compileOp would make on `rank` of a group of specs.size() ranks, where rank r gives specs[r]. hosts: of each rank the number of its
// host; empty: all on one. The op describes itself; its run() and bind() are kUnsupported. Errors: those that compileOp gives all ranks.
// specs[rank].buildDir: where its plan is kept on disk.
Result<std::shared_ptr<CompiledOp>> planOffline(std::span<const LocalSpec> specs, Rank rank, std::span<const std::int32_t> hosts = {});

// The op whose planBytes() these are. It knows of this rank's part only. kInvalidArgument for anything else.
Result<std::shared_ptr<CompiledOp>> readPlan(std::string_view bytes);

}  // namespace shardwire
