// The reports of the transport over shared memory: of a rank, in the store, and of a process, in its answer to a hello
// (host_message.h). Pure. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "backend/fabric/host_message.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// The published report of a rank (Endpoint::address()).
struct ShmAddress {
  ProcessAddress owner;
  std::uint64_t inboxOffset = 0;  // in the arena
  RandomId inboxId;
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
};

// The answer to a hello. The descriptors of the arena, of the liveness, and of the heap, if there is one, travel with
// the answer.
struct ShmWelcome {
  RandomId process;
  std::uint64_t arenaBytes = 0;
  std::uint64_t heapBytes = 0;  // 0: no heap
  std::uint64_t probeAddress = 0;
  std::uint64_t probeSecret = 0;
};

std::string encodeShmAddress(const ShmAddress& address);
std::string encodeShmWelcome(const ShmWelcome& welcome);

// kMismatch for garbage, kUnsupported for another version; a refusal is returned as the error inside.
Result<ShmAddress> decodeShmAddress(std::string_view bytes);
Result<ShmWelcome> decodeShmWelcome(std::string_view bytes);

}  // namespace shardwire::internal
