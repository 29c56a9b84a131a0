// What the transport over shared memory says of itself: a rank in the store, and a process in its answer to a hello (host_message.h). Pure.
// Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backend/base/random_id.h"
#include "backend/fabric/host_message.h"
#include "shardwire/options.h"
#include "shardwire/status.h"

namespace shardwire::internal {

// What a rank says of itself (Endpoint::address()).
struct ShmAddress {
  ProcessAddress owner;
  std::uint64_t inboxOffset = 0;  // in the arena
  RandomId inboxId;
  OrdinaryPath ordinaryPath = OrdinaryPath::kAuto;
};

// The answer to a hello. With it come the descriptors of the arena, of the liveness, and of the heap if there is one.
struct ShmWelcome {
  RandomId process;
  std::uint64_t arenaBytes = 0;
  std::uint64_t heapBytes = 0;  // 0: no heap
  std::uint64_t probeAddress = 0;
  std::uint64_t probeSecret = 0;
};

std::string encodeShmAddress(const ShmAddress& address);
std::string encodeShmWelcome(const ShmWelcome& welcome);

// kMismatch for garbage, kUnsupported for another version; a refusal is returned as its error.
Result<ShmAddress> decodeShmAddress(std::string_view bytes);
Result<ShmWelcome> decodeShmWelcome(std::string_view bytes);

}  // namespace shardwire::internal
