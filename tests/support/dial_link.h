// Dials of tests that wait for the link.
#pragma once

#include "backend/base/random_id.h"
#include "backend/base/wait_limit.h"
#include "backend/fabric/link.h"
#include "shardwire/options.h"

namespace shardwire::internal {

// Runs LinkDial to the end, or to the limit. Errors of step(); kTimeout at the limit.
Result<Link> dialLink(std::span<const NetAddress> addresses, const LinkKey& key, const LinkHello& hello,
                      const Options& options, const WaitLimit& limit);
// With the key made of the group's token and SHARDWIRE_JOB_TOKEN.
Result<Link> dialLink(std::span<const NetAddress> addresses, const RandomId& token, const LinkHello& hello,
                      const Options& options, const WaitLimit& limit);

}  // namespace shardwire::internal
